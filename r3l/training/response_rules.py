"""Rules of responses: texts that end a response early, and grammars that it must follow.

stop texts     the response ends with the token that completes one of them
grammar        only tokens that continue a fitting text are drawn (the library xgrammar); it is that
               of a JSON schema, or of tool calls
"""

import json
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from r3l.errors import RequestRefused

MOST_KEPT = 256
"""The most compiled grammars that are kept."""


class ResponseRules:
    """The rules of responses in a tokenizer's language. `vocabulary`: the number of logits.
    `end_id`: the end-of-turn token."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_id: int) -> None:
        self._tokenizer, self._vocabulary, self._end_id = tokenizer, vocabulary, end_id
        self._compiled: dict[tuple[str, bool], Any] = {}  # by text, and whether it is a tag

    def stops(self, response: npt.NDArray[np.int64], stop: Sequence[str]) -> bool:
        """Whether the last token of a response completes one of the texts `stop`."""
        if not stop:
            return False
        # A token has a byte at least; a few more, for tokenizers that read the first one otherwise.
        longest = max(len(text.encode()) for text in stop) + 4
        tail = self._tokenizer.decode(response[-longest:].tolist(), skip_special_tokens=False)
        return any(text in tail for text in stop)

    def knows(self, schema: dict[str, Any] | None, tag: str | None = None) -> bool:
        """Whether `grammar` returns at once, because there is nothing to compile."""
        return not _follows(schema, tag) or _key(schema, tag) in self._compiled

    def grammar(self, schema: dict[str, Any] | None, tag: str | None = None) -> Any:
        """Returns a matcher for the texts that fit `schema`, a JSON schema, or `tag`, a structural
        tag of xgrammar as JSON. Returns None if both are None or xgrammar is not installed; then
        any text may be drawn. Raises RequestRefused if xgrammar cannot compile it. May be called in
        any thread."""
        if not _follows(schema, tag):
            return None
        from xgrammar import GrammarMatcher

        text, tagged = key = _key(schema, tag)
        if (fitting := self._compiled.get(key)) is None:
            fitting = self._compile(text, tagged=tagged)
            while len(self._compiled) >= MOST_KEPT:
                self._compiled.pop(next(iter(self._compiled)), None)
            self._compiled[key] = fitting
        return GrammarMatcher(fitting, override_stop_tokens=[self._end_id])

    def _compile(self, text: str, *, tagged: bool) -> Any:
        try:
            if tagged:
                return self._compiler.compile_structural_tag(text)
            return self._compiler.compile_json_schema(
                text, any_whitespace=False, separators=(",", ":")
            )
        except (RuntimeError, ValueError) as error:
            raise RequestRefused(
                f"the grammar cannot be compiled: {error!s:.300}", cause="grammar_refused"
            ) from error

    @cached_property
    def _compiler(self) -> Any:
        from xgrammar import GrammarCompiler, TokenizerInfo

        known = TokenizerInfo.from_huggingface(
            self._tokenizer, vocab_size=self._vocabulary, stop_token_ids=[self._end_id]
        )
        return GrammarCompiler(known, max_threads=1, cache_enabled=False)


def _follows(schema: dict[str, Any] | None, tag: str | None) -> bool:
    return (schema is not None or tag is not None) and find_spec("xgrammar") is not None


def _key(schema: dict[str, Any] | None, tag: str | None) -> tuple[str, bool]:
    return (json.dumps(schema), False) if tag is None else (tag, True)


def forbid(logits_BV: Tensor, grammars: Sequence[Any]) -> None:
    """Sets the logits of tokens that break a row's grammar to −∞. `grammars`: B matchers or
    Nones."""
    rows = [i for i, grammar in enumerate(grammars) if grammar is not None]
    if not rows:
        return
    from xgrammar import allocate_token_bitmask, apply_token_bitmask_inplace

    allowed = allocate_token_bitmask(len(grammars), logits_BV.shape[1])
    for i in rows:
        grammars[i].fill_next_token_bitmask(allowed, i)
    apply_token_bitmask_inplace(logits_BV, allowed.to(logits_BV.device), indices=rows)
