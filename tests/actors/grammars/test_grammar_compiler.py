"""Grammars are compiled in forks: those without an end, too large or deadly cost the fork alone."""

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from actors.grammars import grammar_compiler
from actors.grammars.grammar_compiler import JSON, TAG, Compiler, answer
from r3l.models.model_folder import read_tokenizer
from r3l.models.model_path import builtin_policy

NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 3}


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    import xgrammar

    tokenizer = read_tokenizer(builtin_policy(), "the built-in policy")
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    yield Compiler(info.serialize_json(), [tokenizer.eos_token_id or 0], False, [",", ":"])


def tried(compiler: Compiler, schema: Any) -> str:
    return answer(compiler, JSON, json.dumps(schema))


def test_schemas_are_compiled_as_the_engine_does(compiler: Compiler) -> None:
    for schema in ({"type": "object"}, {"enum": ["a", 5]}, True, NUMBERS):
        assert tried(compiler, schema) == ""
    tag = {"structures": [{"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}],
           "triggers": ["<a>"]}  # fmt: skip
    assert answer(compiler, TAG, json.dumps(tag)) == ""
    tag["structures"][0]["schema"] = {"$ref": "#"}  # type: ignore[index]
    assert "no finite text" in answer(compiler, TAG, json.dumps(tag))


def test_what_cannot_be_compiled_is_refused_with_the_reason(compiler: Compiler) -> None:
    assert "no finite text" in tried(compiler, {"$ref": "#"})
    assert "cannot be compiled" in answer(compiler, TAG, "{}")
    assert "cannot be compiled" in answer(compiler, JSON, "{")


def test_a_grammar_that_takes_long_to_read_is_refused(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_compiler, "READ_S", -1.0)
    assert "to read" in tried(compiler, NUMBERS)


class Deadly(Compiler):
    """Compiles in a way of its own."""

    def __init__(self, how: str) -> None:
        self.how = how

    def refusal(self, kind: str, text: str) -> str:
        if self.how == "endless":
            while True:
                pass
        if self.how == "large":
            kept = []
            while True:
                kept.append(bytes(1 << 26))
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()


@pytest.mark.parametrize(
    ("how", "why"), [("endless", "CPU seconds"), ("large", "memory"), ("crash", "SIGABRT")]
)
def test_a_grammar_without_an_end_or_measure_ends_with_its_fork(how: str, why: str) -> None:
    before = time.process_time()
    assert why in answer(Deadly(how), JSON, "{}", 1)
    assert time.process_time() - before < 1  # of this process
