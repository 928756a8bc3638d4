"""Where processes go, and what has no place."""

from dataclasses import replace
from pathlib import Path

import pytest

from launch.topology.machines import Machine, RequestedPlaces, described, parse_learner
from launch.topology.memory_estimate import Estimate
from launch.topology.placement import Plan, Topology, place
from r3l.config import load
from r3l.errors import UserError
from tests.launch.fakes import topology
from tests.launch.topology.test_memory_estimate import SEVEN

FITS = ("learner.zero_stage=3", "learner.gradient_checkpointing=true", "actor.max_model_len=8192")


def placed(actors: int, learner: str, hardware: str, *settings: str, **more: int) -> Topology:
    config = load(None, list(settings))
    ranks, device, machines = parse_learner(learner)
    wanted = RequestedPlaces(actors, ranks, device, machines, **more)
    return place(wanted, described(hardware), Estimate(SEVEN, config.learner, config.actor))


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
        (1, "8gpu", "4cpu", {}, "--learner 8gpu: this machine has 0 GPUs; use --learner 1cpu"),
        (1, "9gpu", "8x80GB", {}, "this machine has 8 GPUs; use --learner 8gpu"),
        (1, "2x8gpu", "8x80GB", {}, "2 machines need --cluster"),
        (1, "3x8gpu", "2x8x80GB", {}, "2 machines have 16 GPUs"),
        (1, "1cpu", "4cpu", {"actor_gpus": 2}, "--actor-gpus: these machines have no GPUs"),
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
