"""What ends a response before its end token, and what its tokens must form.

stop texts     the response ends with the token that completes one of them
JSON schema    only tokens that continue a fitting text are drawn (the library xgrammar)
"""

import json
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor


class ResponseRules:
    """The rules of responses in a tokenizer's language. `vocabulary`: the number of logits.
    `end_id`: the end-of-turn token."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_id: int) -> None:
        self._tokenizer, self._vocabulary, self._end_id = tokenizer, vocabulary, end_id

    def stops(self, response: npt.NDArray[np.int64], stop: Sequence[str]) -> bool:
        """Whether the last token of a response completes one of the texts `stop`."""
        if not stop:
            return False
        # A token has a byte at least; a few more, for tokenizers that read the first one otherwise.
        longest = max(len(text.encode()) for text in stop) + 4
        tail = self._tokenizer.decode(response[-longest:].tolist(), skip_special_tokens=False)
        return any(text in tail for text in stop)

    def grammar(self, schema: dict[str, Any] | None) -> Any:
        """Returns a matcher for the texts that fit a JSON schema. None without a schema, or if
        xgrammar is not installed; then any text may be drawn."""
        if schema is None or find_spec("xgrammar") is None:
            return None
        from xgrammar import GrammarMatcher

        fitting = self._compiler.compile_json_schema(
            json.dumps(schema), any_whitespace=False, separators=(",", ":")
        )
        return GrammarMatcher(fitting, override_stop_tokens=[self._end_id])

    @cached_property
    def _compiler(self) -> Any:
        from xgrammar import GrammarCompiler, TokenizerInfo

        known = TokenizerInfo.from_huggingface(
            self._tokenizer, vocab_size=self._vocabulary, stop_token_ids=[self._end_id]
        )
        return GrammarCompiler(known, max_threads=1)


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
