"""Tries the grammars of agents' requests in helper processes, before the engine gets them.

    request with a grammar ─► known? ── no ─► short? ─► the quick helper ─► remembered
                                │               │ no          │ takes longer      │
                                │               └─────► the slow helper ─► remembered
                                └────────────── refused: RequestRefused ◄─────────┘

An engine compiles grammars in threads of its own process, where nothing can end them. A helper
(actors.grammars.grammar_helper) starts with its first grammar, and ends with the actor. There are
two, so that a short grammar never waits for a long one. An attempt has one grammar tried at a time
(actors.gateway.session). So a grammar waits for at most one grammar of every other attempt.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from actors.grammars.grammar_compiler import CPU_S, JSON, TAG, too_slow
from actors.grammars.grammar_helper import GrammarHelper
from r3l.errors import RequestRefused
from r3l.rollout.policy_interface import SampleParams

MOST_KNOWN = 4096
"""The most grammars whose verdict is remembered."""
LONGEST_LINE = 1 << 20
SHORT = 1 << 12
"""A grammar of this many characters or more is tried by the slow helper."""
QUICK_S = 1
"""CPU seconds for a short grammar, before it goes to the slow helper."""


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
    quick: GrammarHelper = field(init=False)
    slow: GrammarHelper = field(init=False)

    def __post_init__(self) -> None:
        self.quick, self.slow = GrammarHelper(self._first), GrammarHelper(self._first)

    async def check(self, params: SampleParams) -> None:
        """Raises RequestRefused if the engine cannot follow the grammar of a request. Raises
        EngineFailed if a helper process fails."""
        if params.json_schema is not None:
            kind, text = JSON, json.dumps(params.json_schema)
        elif params.structural_tag is not None:
            kind, text = TAG, params.structural_tag
        else:
            return
        name = hashlib.blake2b(
            f"{kind} {text}".encode(errors="replace"), digest_size=16
        ).hexdigest()
        if len(text) > LONGEST_LINE:
            self._remember(name, f"it has more than {LONGEST_LINE:,} characters; shorten it")
        if len(text) < SHORT:
            await self._try(self.quick, name, kind, text, QUICK_S)
        await self._try(self.slow, name, kind, text, CPU_S)
        if why := self.known[name]:
            raise RequestRefused(why, cause="grammar_refused")

    def close(self) -> None:
        """Ends the helpers."""
        self.quick.close()
        self.slow.close()

    async def _try(
        self, helper: GrammarHelper, name: str, kind: str, text: str, cpu_s: int
    ) -> None:
        """Lets a helper try a grammar without a verdict for at most `cpu_s` seconds, and remembers
        the verdict. Remembers that a grammar is too slow only if `cpu_s` is CPU_S."""
        if name in self.known:
            return
        async with helper.turn:
            if name not in self.known:
                why = await helper.try_grammar(kind, text, cpu_s)
                if cpu_s == CPU_S or why != too_slow(cpu_s):
                    self._remember(name, why)

    def _remember(self, name: str, why: str) -> None:
        if len(self.known) >= MOST_KNOWN:
            del self.known[next(iter(self.known))]
        self.known[name] = why

    def _first(self) -> dict[str, Any]:
        """Returns what a helper reads first."""
        import xgrammar

        info = xgrammar.TokenizerInfo.from_huggingface(self.tokenizer, vocab_size=self.vocabulary)
        given = {"end": self.end, "whitespace": self.whitespace, "separators": self.separators}
        return given | {"tokenizer": str(info.serialize_json())}
