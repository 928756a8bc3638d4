"""What the options of a topology mean."""

import pytest

from launch.topology.requested import RequestedPlaces, parse_learner
from r3l.errors import UserError


def test_a_learner_is_ranks_a_device_and_maybe_machines() -> None:
    assert parse_learner("1cpu") == (1, "cpu", None)
    assert parse_learner("8gpu") == (8, "gpu", None)
    assert parse_learner("2x8gpu") == (16, "gpu", 2)
    assert (
        RequestedPlaces(1, 16, "gpu", 2).learner == "2x8gpu"
        and RequestedPlaces(1, 3, "cpu").learner == "3cpu"
    )


@pytest.mark.parametrize("text", ["gpu", "0gpu", "2x", "2x0gpu", "x8gpu", "2x2x2gpu", "8 gpu"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="1cpu or 8gpu"):
        parse_learner(text)
