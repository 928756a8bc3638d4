"""Lengths, and what is cut off by the context or by its budget."""

import numpy as np
import pytest
from msgspec.structs import replace

from learner.evaluation.lengths import length_metrics
from learner.metrics.group_metrics import group_metrics
from r3l.records import Extra, Group, SlotResult, done
from tests.r3l.training.fakes import FIRST, RESPONSE, STEP, explore_group, trajectory


def cut_group() -> Group:
    """Two attempts of 4 steps and a retry of 2: one attempt without room for its last response, one
    with two responses cut off, and a retry that the context had no room for."""
    group = explore_group((0.0, 0.0), (1.0, None))
    first, second, retry, _ = group.results
    assert first.trajectory is not None and second.trajectory is not None
    overflowed = replace(first, trajectory=replace(first.trajectory, finish="context_overflow"))
    cuts = Extra(step_cut=np.array([True, True, False, False]))
    cut = replace(second, trajectory=replace(second.trajectory, extra=cuts))
    no_room = SlotResult(3, "failed", cause="context_overflow", of=1)
    return replace(group, results=(overflowed, cut, retry, no_room))


def test_shares_cut_off_and_lengths_are_measured_on_all_attempts() -> None:
    found = length_metrics([cut_group()])
    assert found["cut_attempts"] == 2 / 4
    assert found["cut_responses"] == 2 / (4 + 4 + 3)  # the retry sampled from its pivot 1 on
    assert found["length_mean"] == found["length_max"] == found["length_p95"] == FIRST + 4 * STEP
    assert found["response_mean"] == found["response_max"] == RESPONSE
    assert length_metrics([]) == {}
    assert group_metrics([cut_group()])["group/cut_attempts"] == 0.5


def test_the_95th_percentile_and_the_maximum_tell_of_a_long_attempt() -> None:
    group = explore_group((0.0,) * 20, ())
    steps = [2] * 19 + [20]
    results = tuple(done(trajectory(n, 0.0, steps=count)) for n, count in enumerate(steps))
    found = length_metrics([replace(group, results=results)])
    assert (found["length_mean"], found["length_max"]) == (38.1, 192.0)  # 19 of 30 tokens
    assert found["length_p95"] == pytest.approx(30 + 0.05 * (192 - 30))
