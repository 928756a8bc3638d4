"""A worker that is started after the first one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from envs.isolation.pool import environments
from r3l.errors import EnvironmentFailed
from r3l.run.settings.environment import EnvConfig

pytestmark = pytest.mark.system
SOURCE = """
import r3l

class Once:
    spec = r3l.EnvSpec("once", "", max_steps=2)

    def __init__(self):
        with open({file!r}, "x"):
            pass

    def reset(self, *, seed, options=None):
        return "here", {{}}

    def step(self, action):
        return "", 0.0, True, False, {{}}

    def close(self):
        pass
"""


def test_an_attempt_whose_worker_cannot_be_started_says_why(tmp_path: Path) -> None:
    file = tmp_path / "once.py"
    file.write_text(SOURCE.format(file=str(tmp_path / "made")))

    async def play() -> EnvironmentFailed:
        config = EnvConfig(name=f"{file}:Once", isolation="process", workers=2, step_s=60)
        async with environments(config, 2) as make_env:
            attempts: list[Any] = [make_env() for _ in range(2)]
            played = await asyncio.gather(
                *(env.reset(seed=0) for env in attempts), return_exceptions=True
            )
            (lost,) = [one for one in played if isinstance(one, EnvironmentFailed)]
            return lost

    lost = asyncio.run(play())
    assert lost.cause == "environment_lost"
    assert "could not be started" in str(lost) and "FileExistsError" in str(lost)
