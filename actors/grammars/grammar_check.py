"""Tries the grammars of agents' requests in a helper process, before the engine gets them.

    request with a grammar ─► known? ── no ─► the helper compiles it, within limits ─► remembered
                                │                                                          │
                                └─────────── refused: RequestRefused ◄─────────────────────┘

An engine compiles grammars in threads of its own process, where nothing can end them. The helper
(actors.grammars.grammar_compiler) starts with the first grammar, and ends with the actor.
"""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from actors.grammars.grammar_compiler import JSON, TAG
from r3l.errors import EngineFailed, RequestRefused
from r3l.files.own_packages import import_path, module_command
from r3l.rollout.policy_interface import SampleParams

LIMIT_S = 180.0
"""Seconds of waiting for the helper and its start. The limit of a grammar is one of CPU time."""
MOST_KNOWN = 4096
"""The most grammars whose verdict is remembered."""
LONGEST_LINE = 1 << 20


@dataclass
class GrammarCheck:
    """Tries grammars with an engine's tokenizer. `end`: ids of the tokens that end a reply.
    `whitespace`, `separators`: how the engine compiles JSON schemas."""

    tokenizer: Any
    vocabulary: int  # of the model, in tokens
    end: list[int]
    whitespace: bool = False
    separators: list[str] | None = None
    known: dict[str, str] = field(default_factory=dict, init=False)
    helper: subprocess.Popen[str] | None = field(default=None, init=False)
    answered: bool = field(default=False, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def check(self, params: SampleParams) -> None:
        """Raises RequestRefused if the engine cannot follow the grammar of a request. Raises
        EngineFailed if the helper process fails."""
        if params.json_schema is not None:
            kind, text = JSON, json.dumps(params.json_schema)
        elif params.structural_tag is not None:
            kind, text = TAG, params.structural_tag
        else:
            return
        name = hashlib.blake2b(
            f"{kind} {text}".encode(errors="replace"), digest_size=16
        ).hexdigest()
        if name not in self.known:
            async with self._turn:
                if name not in self.known:
                    self._remember(name, await self._tried(kind, text))
        if why := self.known[name]:
            raise RequestRefused(why, cause="grammar_refused")

    def close(self) -> None:
        """Ends the helper."""
        helper, self.helper = self.helper, None
        if helper is not None:
            with suppress(ProcessLookupError):
                os.killpg(helper.pid, signal.SIGKILL)
            helper.wait()

    def _remember(self, name: str, why: str) -> None:
        if len(self.known) >= MOST_KNOWN:
            del self.known[next(iter(self.known))]
        self.known[name] = why

    async def _tried(self, kind: str, text: str) -> str:
        """Has the helper try a grammar. Returns why it is refused, or ""."""
        if len(text) > LONGEST_LINE:
            return f"it has more than {LONGEST_LINE:,} characters; shorten it"
        try:
            async with asyncio.timeout(LIMIT_S):
                return await asyncio.to_thread(self._asked, {"kind": kind, "text": text})
        except (TimeoutError, OSError, ValueError, KeyError) as error:
            raise EngineFailed(
                f"the process that tries grammars failed ({error!r:.200}); the next request with a "
                "grammar starts another one",
                cause="grammar_check",
            ) from error
        finally:
            if not self._ready():  # it would give its answer to the next request
                self.close()

    def _ready(self) -> bool:
        return self.helper is not None and self.answered

    def _asked(self, job: dict[str, str]) -> str:
        """Gives the helper a job; starts the helper if there is none. Runs in a thread, which ends
        when the helper is killed."""
        self.answered = False
        if self.helper is None:
            self.helper = subprocess.Popen(
                module_command("actors.grammars.grammar_compiler"),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
                env=os.environ | {"PYTHONPATH": import_path()},
            )  # fmt: skip
            given = {"end": self.end, "whitespace": self.whitespace, "separators": self.separators}
            self._exchange(self.helper, given | {"tokenizer": self._serialised()})
        refused = str(self._exchange(self.helper, job)["refused"])
        self.answered = True
        return refused

    @staticmethod
    def _exchange(helper: subprocess.Popen[str], message: dict[str, Any]) -> dict[str, Any]:
        assert helper.stdin is not None and helper.stdout is not None
        print(json.dumps(message), file=helper.stdin, flush=True)
        return dict(json.loads(helper.stdout.readline()))  # "" if it has ended: ValueError

    def _serialised(self) -> str:
        import xgrammar

        info = xgrammar.TokenizerInfo.from_huggingface(self.tokenizer, vocab_size=self.vocabulary)
        return str(info.serialize_json())
