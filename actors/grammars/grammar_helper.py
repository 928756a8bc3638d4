"""A process that tries grammars, one at a time (actors.grammars.grammar_compiler)."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from r3l.errors import EngineFailed
from r3l.files.own_packages import import_path, module_command

LIMIT_S = 180.0
"""Seconds of waiting for the helper and its start. The limit of a grammar is in CPU time."""


@dataclass
class GrammarHelper:
    """Tries grammars in a helper process, which starts with the first grammar, and again after a
    failure.

    `first`: makes the first line that the helper reads. `turn`: held by the request whose grammar
    is tried.
    """

    first: Callable[[], dict[str, Any]]
    turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    process: subprocess.Popen[str] | None = field(default=None, init=False)
    answered: bool = field(default=False, init=False)

    async def try_grammar(self, kind: str, text: str, cpu_s: int) -> str:
        """Lets the helper process try a grammar for at most `cpu_s` seconds of CPU time. Returns
        why the grammar is refused, or "" if it is not. Raises EngineFailed if the process fails."""
        job = {"kind": kind, "text": text, "cpu_s": cpu_s}
        try:
            async with asyncio.timeout(LIMIT_S):
                return await asyncio.to_thread(self._ask, job)
        except (TimeoutError, OSError, ValueError, KeyError) as error:
            raise EngineFailed(
                f"the process that tries grammars failed ({error!r:.200}); the next request with a "
                "grammar starts another one",
                cause="grammar_check",
            ) from error
        finally:
            if not self._ready():  # it would give its answer to the next request
                self.close()

    def close(self) -> None:
        """Ends the process."""
        process, self.process = self.process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _ready(self) -> bool:
        return self.process is not None and self.answered

    def _ask(self, job: dict[str, Any]) -> str:
        """Gives the process a job; starts one if there is none. Runs in a thread, which ends when
        the process is killed."""
        self.answered = False
        if self.process is None:
            self.process = subprocess.Popen(
                module_command("actors.grammars.grammar_compiler"),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
                env=os.environ | {"PYTHONPATH": import_path()},
            )  # fmt: skip
            self._exchange(self.process, self.first())
        refused = str(self._exchange(self.process, job)["refused"])
        self.answered = True
        return refused

    @staticmethod
    def _exchange(process: subprocess.Popen[str], message: dict[str, Any]) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        print(json.dumps(message), file=process.stdin, flush=True)
        return dict(json.loads(process.stdout.readline()))  # "" if it has ended: ValueError
