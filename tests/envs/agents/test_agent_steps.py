"""A process of an agent is run until it ends, something else happens or time is up."""

import asyncio
import os
import subprocess
from typing import Any

import pytest

from envs.agents.agent_steps import run_process
from r3l.rollout.env_interface import EnvSpec


class Started:
    """An environment that has started a process and reports the steps it took."""

    spec = EnvSpec("agent", "", max_steps=1)

    def __init__(self, pid: int) -> None:
        self.pid, self.steps = pid, list[str]()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps.append(action)
        return f'{{"pid": {self.pid}, "exit": 0}}', 0.0, False, False, {}


def run(pid: int, limit_s: float, changed: asyncio.Event | None = None) -> tuple[bool, list[str]]:
    env = Started(pid)
    state, in_time = asyncio.run(run_process(env, {"start": {}}, limit_s, changed))  # type: ignore[arg-type]
    assert state == {"pid": pid, "exit": 0}
    return in_time, env.steps


def test_a_process_is_awaited_and_then_stopped() -> None:
    with subprocess.Popen(["sleep", "0.2"]) as process:
        in_time, steps = run(process.pid, 60.0)
        assert in_time and steps == ['{"start": {}}', '{"stop": null}']
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
