"""Takes the steps of the environment `agent`: the gateway's, and those of a regrade."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from envs.agents.agent_result import State
from r3l.rollout.env_calls import guarded, read_step
from r3l.rollout.env_interface import Environment


async def take_step(env: Environment, command: dict[str, Any]) -> State:
    """Takes a step; returns the state of its process. Raises EpisodeError."""
    action = json.dumps(command)
    answer = await guarded(lambda: env.step(action))
    return dict(json.loads(read_step(env.spec.name, answer)[0]))


async def run_process(
    env: Environment,
    start: dict[str, Any],
    limit_s: float,
    changed: asyncio.Event | None = None,
    process: str | None = None,
) -> tuple[State, bool]:
    """Runs a process until it ends, `changed` is set or time is up, then kills it. Returns its
    state, and False if time was up. `process`: the name by which it is stopped."""
    state, ended = await take_step(env, start), changed or asyncio.Event()
    if "pid" not in state:  # it was done in the worker process
        return state, True
    in_time = True
    with _set_at_end(ended, state["pid"]):
        try:
            async with asyncio.timeout(limit_s):
                await ended.wait()
        except TimeoutError:
            in_time = False
    return await take_step(env, {"stop": process}), in_time


@contextmanager
def _set_at_end(ended: asyncio.Event, pid: int) -> Iterator[None]:
    """Sets an event when a process of this machine has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        ended.set()
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, ended.set)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        os.close(fd)
