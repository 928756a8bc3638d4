"""A process of an agent is run until it ends, something else happens or time is up; what it says
is a result, or fails the attempt."""

import asyncio
import os
import subprocess
from typing import Any

import pytest

from envs.agents.agent_runner import ProcessState
from envs.agents.agent_steps import grade, outcome_of, run_process
from r3l.errors import EnvironmentFailed
from r3l.views.tape import TapedCall


class Started:
    """An environment that has started a process and remembers which one it stopped."""

    def __init__(self, pid: int, **state: Any) -> None:
        self.state = ProcessState(**{"pid": pid, "exit": 0} | state)
        self.stopped = list[str]()

    def start(self, *given: Any) -> ProcessState:
        return self.state

    grade = start

    def stop(self, name: str) -> ProcessState:
        self.stopped.append(name)
        return self.state


def run(pid: int, limit_s: float, changed: asyncio.Event | None = None) -> tuple[bool, list[str]]:
    env: Any = Started(pid)
    state, in_time = asyncio.run(run_process(env, "p", env.start, limit_s, changed))
    assert state == ProcessState(pid=pid, exit=0)
    return in_time, env.stopped


def test_a_process_is_awaited_and_then_stopped() -> None:
    with subprocess.Popen(["sleep", "0.2"]) as process:
        assert run(process.pid, 60.0) == (True, ["p"])
        assert process.wait(60) == 0
    assert run(process.pid, 60.0)[0], "of a process that has ended before it could be watched"


@pytest.mark.parametrize("changed", [True, False])
def test_nobody_waits_longer_than_the_limit_or_for_a_process_whose_result_is_there(
    changed: bool,
) -> None:
    event = asyncio.Event()
    if changed:
        event.set()
    assert run(os.getpid(), 60.0 if changed else 0.1, event)[0] == changed


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


def test_a_failure_is_told_with_what_its_feedback_says() -> None:
    with pytest.raises(EnvironmentFailed, match="failure: 'tests_exit': exit code 3"):
        outcome_of({"failed": "tests_exit", "feedback": "exit code 3"}, 1.0, "x")


def test_a_grader_that_failed_or_took_too_long_or_printed_no_json_is_named() -> None:
    def graded(**state: Any) -> Any:
        runs = state["exit"] is None
        env: Any = Started(os.getpid() if runs else 1 << 22, **state)
        return asyncio.run(grade(env, [], 0.01 if runs else 60.0))

    assert graded(exit=0, stdout="[1, 2]") == [1, 2]
    for state, why in (
        ({"exit": 1, "stderr": "KeyError: a"}, "KeyError: a"),
        ({"exit": 0, "stdout": "KeyError: a"}, "KeyError: a"),
        ({"exit": None, "stderr": ""}, "too long"),
    ):
        with pytest.raises(EnvironmentFailed, match=f"grader.*{why}") as failed:
            graded(**state)
        assert failed.value.cause == "grader_failed"


def test_a_grader_gets_the_calls_that_were_answered() -> None:
    asked = ({"role": "user", "content": "2 + 2?"},)
    answered = TapedCall("chat", "a", -1, asked, reply={"content": "4"})
    refused = TapedCall("chat", "b", 0, asked)  # its context was full
    env: Any = Started(1 << 22, stdout="1.0")
    given = list[Any]()
    env.grade = lambda calls: given.append(calls) or env.state
    assert asyncio.run(grade(env, [answered, refused], 60.0)) == 1.0
    assert given == [[{"messages": list(asked), "reply": {"content": "4"}}]]
