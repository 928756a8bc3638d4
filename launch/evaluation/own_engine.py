"""Starts an engine for one command, in this process, and keeps its output in a log file."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from r3l.config import RunConfig
from r3l.errors import EngineDead
from r3l.rollout.policy_interface import Policy


@asynccontextmanager
async def own_engine(config: RunConfig, log: Path) -> AsyncIterator[Policy]:
    """Starts an engine for the model of `config`. Raises EngineDead that names the log."""
    try:
        with output_into(log):
            from actors.engine import VLLMPolicy

            policy = VLLMPolicy.start(Path(config.model), config.actor, seed=config.seed)
    except EngineDead as error:
        raise EngineDead(f"{_cause(log) or error} (log: {log})") from error
    try:
        yield policy
    finally:
        with output_into(log):
            policy.close()


def _cause(log: Path) -> str:
    """The error that the engine's process printed last, which vLLM's own error does not name."""
    printed = log.read_text(encoding="utf-8", errors="replace")
    found = re.findall(r"^\w+Error: .+", printed, re.MULTILINE)
    return f"the engine did not start: {found[-1]}" if found else ""


@contextmanager
def output_into(log: Path) -> Iterator[None]:
    """Redirects this process's output to a file. Processes started meanwhile keep writing to that
    file."""
    own = [(fd, os.dup(fd)) for fd in (1, 2)]
    with log.open("ab") as file:
        for fd, _ in own:
            os.dup2(file.fileno(), fd)
    try:
        yield
    finally:
        for fd, original in own:
            os.dup2(original, fd)
            os.close(original)
