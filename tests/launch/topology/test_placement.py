"""Where processes go, and what has no place."""

from dataclasses import replace
from pathlib import Path

import pytest

from launch.topology.gpu_memory import MemoryEstimate, total
from launch.topology.machines import Machine, RequestedPlaces, described, parse_learner
from launch.topology.placement import Plan, Topology, place
from r3l.errors import UserError
from r3l.run.config import load
from tests.launch.fakes import topology
from tests.launch.topology.test_gpu_memory import SEVEN

FITS = ("learner.zero_stage=3", "learner.gradient_checkpointing=true", "actor.max_model_len=8192")


def placed(actors: int, learner: str, hardware: str, *settings: str, **more: int) -> Topology:
    config = load(None, list(settings))
    ranks, device, machines = parse_learner(learner)
    wanted = RequestedPlaces(actors, ranks, device, machines, **more)
    return place(wanted, described(hardware), MemoryEstimate(SEVEN, config.learner, config.actor))


def gpus(topology: Topology) -> list[str]:
    return [f"{p.machine}:{','.join(p.gpus)}" for p in topology.actors]


def test_actors_take_the_gpus_that_the_learner_leaves_and_share_if_it_leaves_none() -> None:
    assert gpus(placed(4, "2gpu", "4x141GB", *FITS)) == [
        "localhost:2", "localhost:3", "localhost:2", "localhost:3",
    ]  # fmt: skip
    together = placed(3, "2gpu", "2x141GB", *FITS)
    assert gpus(together) == ["localhost:0", "localhost:1", "localhost:0"]
    assert gpus(placed(2, "1cpu", "2x80GB", *FITS)) == ["localhost:0", "localhost:1"]


def test_an_actor_of_several_gpus_stays_on_one_machine() -> None:
    topology = placed(4, "2x4gpu", "2x8x80GB", *FITS, actor_gpus=2)
    assert gpus(topology) == ["host-0:4,5", "host-0:6,7", "host-1:4,5", "host-1:6,7"]
    assert [(r.machine, r.count) for r in topology.ranks] == [("host-0", 4), ("host-1", 4)]
    assert topology.elsewhere == ("host-1",)


def test_ranks_fill_machines_in_order_unless_they_are_spread() -> None:
    ranks = placed(1, "12gpu", "2x8x80GB", *FITS).ranks
    assert [(r.machine, r.count) for r in ranks] == [("host-0", 8), ("host-1", 4)]


def test_ranks_of_a_cpu_run_may_use_all_cores_and_actors_their_share() -> None:
    topology = placed(2, "1cpu", "16cpu")
    assert topology.threads == 16 and {p.threads for p in topology.actors} == {5}
    assert {p.gpus for p in topology.actors} == {()} and topology.memory == ()
    small = placed(2, "1cpu", "2cpu")
    assert small.threads == 2 and {p.threads for p in small.actors} == {1}
    assert placed(2, "4cpu", "2cpu").threads == 1


def test_processes_on_gpus_share_the_cores_of_their_machine() -> None:
    box = Machine("box", tuple("01234567"), 80.0, 96)
    few = place(RequestedPlaces(2, 2, "gpu"), [box])
    assert few.threads == 16 and {p.threads for p in few.actors} == {16}
    many = place(RequestedPlaces(6, 2, "gpu"), [replace(box, cores=16)])
    assert many.threads == 2 and {p.threads for p in many.actors} == {2}
    unknown = place(RequestedPlaces(6, 2, "gpu"), [replace(box, cores=None)])
    assert unknown.threads is None and {p.threads for p in unknown.actors} == {None}


def test_actors_without_gpus_are_spread_over_the_machines() -> None:
    topology = place(RequestedPlaces(3, 1, "cpu"), described("2x4cpu"))
    assert [p.machine for p in topology.actors] == ["host-0", "host-1", "host-0"]


@pytest.mark.parametrize(
    ("actors", "learner", "hardware", "more", "why"),
    [
        (1, "8gpu", "4cpu", {}, "has 0 GPUs; use --learner 1cpu"),
        (1, "9gpu", "8x80GB", {}, "has 8 GPUs; use --learner 8gpu"),
        (1, "2x8gpu", "8x80GB", {}, "2 machines need --cluster"),
        (1, "3x8gpu", "2x8x80GB", {}, "2 machines have 16 GPUs"),
        (1, "1cpu", "4cpu", {"actor_gpus": 2}, "--actor-gpus: "),
        (1, "1gpu", "2x8x80GB", {"actor_gpus": 9}, "no machine has more than 8 GPUs"),
    ],
)  # fmt: skip
def test_a_plan_larger_than_its_machines_is_refused(
    actors: int, learner: str, hardware: str, more: dict, why: str
) -> None:
    with pytest.raises(UserError) as refused:
        placed(actors, learner, hardware, *FITS, **more)
    assert why in str(refused.value) and "\n" not in str(refused.value)


def test_a_plan_counts_its_actors() -> None:
    bind = "tcp://127.0.0.1:*"
    assert Plan(load(), Path("run"), topology(3), bind, bind, resume=False).actors == 3


def test_an_actor_alone_on_a_gpu_takes_what_vllm_takes_and_several_share_it() -> None:
    assert [p.share for p in placed(2, "2gpu", "4x141GB", *FITS).actors] == [None, None]
    assert {p.share for p in placed(4, "2gpu", "4x141GB", *FITS).actors} == {0.47}


def test_sixteen_actors_and_eight_ranks_share_what_the_model_states_leave() -> None:
    topology = placed(16, "8gpu", "8x141GB", *FITS)
    assert [p.gpus for p in topology.actors[:9]] == [(str(i % 8),) for i in range(9)]
    config = load(None, list(FITS))
    states = total(MemoryEstimate(SEVEN, config.learner, config.actor).learner_needs(8))
    (share,) = {p.share for p in topology.actors}
    assert share is not None and 3 * share * 141 + states <= 0.95 * 141, "a third is the rank's"
    assert 3 * (share + 0.01) * 141 + states > 0.95 * 141
    assert "each rank: 1.8 weights" in topology.memory[0]
    assert "141 GiB (2 per GPU, next to a rank" in topology.memory[1]


def test_the_users_own_share_is_kept() -> None:
    own = "actor.engine.gpu_memory_utilization=0.3"
    topology = placed(2, "1gpu", "1x141GB", *FITS, own, "learner.offload=all")
    assert {p.share for p in topology.actors} == {None}
    with pytest.raises(UserError, match=r"gets 98.7 .*141 GiB \(2 per GPU"):
        placed(2, "1gpu", "1x141GB", *FITS, own.replace("0.3", "0.7"), "learner.offload=all")


@pytest.mark.parametrize(
    ("actors", "learner", "hardware", "settings", "says"),
    [
        (1, "1gpu", "2x40GB", (),
         "--learner 1gpu: a rank needs 14.2 weights + 42.6 gradients + 85.1 optimizer = 141.9 GiB "
         "plus activations, but can use only 95% of a GPU's 40 GiB; raise learner.zero_stage"),
        (1, "1gpu", "2x14GB", ("learner.lora.rank=16",),
         "14.2 weights + 0.2 gradients + 0.4 optimizer = 14.7 GiB plus activations, but can use "
         "only 95% of a GPU's 14 GiB; set learner.zero_stage=3"),
        (16, "8gpu", "8x48GB", FITS,
         "--actors 16: an actor needs 14.2 weights + 0.4 KV + 2.0 fixed = 16.6 GiB for one "
         "request, but gets 8.6 of a GPU's 48 GiB (2 per GPU, next to a rank of 18.9 GiB); give "),
        (1, "6gpu", "8x16GB", (*FITS, "learner.offload=all"),
         "gets 14.4 of a GPU's 16 GiB (1 per GPU); "),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_arithmetic(
    actors: int, learner: str, hardware: str, settings: tuple, says: str
) -> None:
    with pytest.raises(UserError) as refused:
        placed(actors, learner, hardware, *settings)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_force_places_what_the_estimate_refuses() -> None:
    config = load()
    needs = MemoryEstimate(SEVEN, config.learner, config.actor)
    topology = place(RequestedPlaces(2, 1, "gpu"), described("1x24GB"), needs, force=True)
    assert {p.share for p in topology.actors} == {0.16}


def test_gpus_of_unknown_memory_are_not_shared_by_guess() -> None:
    machine = Machine("localhost", ("0",), None)
    assert place(RequestedPlaces(1, 1, "cpu"), [machine]).actors[0].share is None
    with pytest.raises(UserError, match=r"set actor\.engine.gpu_memory_utilization"):
        place(RequestedPlaces(2, 1, "cpu"), [machine])
