"""What an agent or a grader says is a result, or fails the attempt."""

import pytest

from envs.agents.agent_result import graded, outcome_of
from r3l.errors import EnvironmentFailed


def test_a_result_needs_a_number() -> None:
    good = outcome_of({"reward": 2, "parts": {"a": 1, "b c": 2}, "feedback": "hm"}, 2.0, "x")
    assert (good.reward, good.parts, good.feedback, good.finish) == (1.0, {"a": 1.0}, "hm", "x")
    assert outcome_of(0.5, 1.0, "x").reward == 0.5
    for result, cause in (
        ({"failed": "disk_full"}, "disk_full"),
        ({"failed": "the disk is full"}, "agent_failed"),
        ("what", "no_reward"),
        ({"reward": float("nan")}, "no_reward"),
        ({}, "no_reward"),
    ):
        with pytest.raises(EnvironmentFailed) as failed:
            outcome_of(result, 1.0, "x")
        assert failed.value.cause == cause


def test_a_grader_that_failed_or_took_too_long_or_printed_no_json_is_named() -> None:
    assert graded({"exit": 0, "stdout": "[1, 2]"}, True) == [1, 2]
    for state, in_time, why in (
        ({"exit": 1, "stderr": "KeyError: a"}, True, "KeyError: a"),
        ({"exit": 0, "stdout": "KeyError: a"}, True, "KeyError: a"),
        ({"exit": None, "stderr": ""}, False, "too long"),
    ):
        with pytest.raises(EnvironmentFailed, match=f"grader.*{why}") as failed:
            graded(state, in_time)
        assert failed.value.cause == "grader_failed"
