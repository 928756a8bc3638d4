"""What processes get of a GPU's memory, and the refusals with their arithmetic."""

import pytest

from launch.topology.machines import Machine, RequestedPlaces, described
from launch.topology.memory_estimate import Estimate, total
from launch.topology.placement import place
from r3l.config import load
from r3l.errors import UserError
from tests.launch.topology.test_memory_estimate import SEVEN
from tests.launch.topology.test_placement import FITS, placed


def test_an_actor_alone_on_a_gpu_takes_what_vllm_takes_and_several_share_it() -> None:
    assert [p.share for p in placed(2, "2gpu", "4x141GB", *FITS).actors] == [None, None]
    assert {p.share for p in placed(4, "2gpu", "4x141GB", *FITS).actors} == {0.47}


def test_sixteen_actors_and_eight_ranks_share_what_the_model_states_leave() -> None:
    topology = placed(16, "8gpu", "8x141GB", *FITS)
    assert [p.gpus for p in topology.actors[:9]] == [(str(i % 8),) for i in range(9)]
    config = load(None, list(FITS))
    states = total(Estimate(SEVEN, config.learner, config.actor).learner_parts(8))
    (share,) = {p.share for p in topology.actors}
    assert share is not None and 3 * share * 141 + states <= 0.95 * 141, "a third is the rank's"
    assert 3 * (share + 0.01) * 141 + states > 0.95 * 141
    assert "each rank: 1.8 weights" in topology.memory[0]
    assert "2 on each GPU of 141 GiB next to a rank" in topology.memory[1]


def test_the_users_own_share_is_kept() -> None:
    own = "actor.engine.gpu_memory_utilization=0.3"
    topology = placed(2, "1gpu", "1x141GB", *FITS, own, "learner.offload=all")
    assert {p.share for p in topology.actors} == {None}
    with pytest.raises(UserError, match=r"2 on each GPU of 141 GiB next to a rank of .* get 98.7"):
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
         "request, 2 on each GPU of 48 GiB next to a rank of 18.9 GiB get 8.6 GiB; give fewer"),
        (1, "6gpu", "8x16GB", (*FITS, "learner.offload=all"),
         "1 on each GPU of 16 GiB get 14.4 GiB; give fewer --actors or more --actor-gpus"),
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
    needs = Estimate(SEVEN, config.learner, config.actor)
    topology = place(RequestedPlaces(2, 1, "gpu"), described("1x24GB"), needs, force=True)
    assert {p.share for p in topology.actors} == {0.16}


def test_gpus_of_unknown_memory_are_not_shared_by_guess() -> None:
    machine = Machine("localhost", ("0",), None)
    assert place(RequestedPlaces(1, 1, "cpu"), [machine]).actors[0].share is None
    with pytest.raises(UserError, match=r"is not known; set actor\.engine.gpu_memory_utilization"):
        place(RequestedPlaces(2, 1, "cpu"), [machine])
