"""Restarts from successes: the stage of a task, and where it restarts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3l.errors import UserError
from tests.r3l.algorithms.fakes import get, plans_of

FAILED, WON = ("", (0.0, 0.0, 0.0, 0.0)), ("", (0.0, 0.0, 0.0, 1.0))


def kind(*groups, **settings):
    algorithm = get("restart_from_success", share=1.0, **settings)
    [kind] = {plan[0] if plan else "" for plan in plans_of(algorithm, *groups, seeds=20)}
    return kind


def restarts(stage, *rewards):
    return f"restart {stage}", rewards


def test_a_curriculum_begins_near_the_end_and_follows_the_success_of_its_restarts():
    assert kind(WON) == "restart 1"
    assert kind(restarts(1, 1.0, 0.0), WON) == "restart 2"  # half of them
    assert kind(restarts(2, 1.0, 0.0, 0.0), restarts(1, 1.0), WON) == "restart 2"
    assert kind(restarts(3, 0.0, 0.0), restarts(2, 1.0), WON) == "restart 2"
    assert kind(restarts(1, 0.0), WON) == "restart 1"
    assert kind(restarts(4, 1.0), WON) == "restart 4"  # the last one, until the task is easy
    assert kind(FAILED, restarts(2, 1.0), WON) == "restart 3"
    assert kind(restarts(2, 0.5, 0.9), WON, back=0.1, forward=0.2) == "restart 1"


def test_an_easy_task_and_one_without_a_success_play_from_the_beginning():
    assert kind(("", (1.0, 1.0, 0.0)), restarts(1, 0.0), WON) == ""
    assert kind(FAILED) == kind() == ""
    found = plans_of(get("restart_from_success"), WON)
    assert set(found) == {(), ("restart 1", ("g1", 3))} and 160 < found[()] < 240


def starts(steps, stages):
    algorithm, random = get("restart_from_success", stages=stages), np.random.default_rng()
    return [algorithm.start_of(f"restart {s}", steps, random) for s in range(1, stages + 1)]


def test_a_stage_leaves_its_part_of_the_steps():
    assert starts(10, 4) == [8, 6, 4, 2]
    assert starts(5, 4) == [4, 3, 2, 1]
    assert starts(3, 4) == [2, 1, 1, 1]
    assert starts(2, 4) == [1] * 4 and starts(7, 1) == [3]


@given(steps=st.integers(2, 99), stages=st.integers(1, 30))
def test_each_stage_starts_no_later_than_the_one_before_and_inside(steps, stages):
    found = starts(steps, stages)
    assert found == sorted(found, reverse=True) and 1 <= min(found) <= max(found) < steps


def test_a_curriculum_without_a_direction_is_refused():
    with pytest.raises(UserError, match=r"back 0.5 must be less than forward 0.5"):
        get("restart_from_success", back=0.5)
