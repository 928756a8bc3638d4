"""What ends a response and what it must form."""

import json

import numpy as np
import pytest
import torch

from r3l.errors import RequestRefused
from r3l.models.model_path import shipped_tokenizer
from r3l.rollout.reflection import json_schema, parse
from r3l.training import response_rules
from r3l.training.response_rules import ResponseRules, forbid
from tests.r3l.fakes import CharTokenizer

CHARACTERS = ResponseRules(CharTokenizer(), 200, 1)


def stops_after(text: str, *stop: str) -> int:
    """How many characters are sampled until a stop text is complete; -1 if none is."""
    ids = np.array(CharTokenizer().encode(text))
    return next((n for n in range(1, len(ids) + 1) if CHARACTERS.stops(ids[:n], stop)), -1)


@pytest.mark.parametrize(
    ("text", "stop", "after"),
    [
        ("go north\n\nand", ["\n\n"], 10),
        ("abcabd", ["abd", "cab"], 5),
        ("aab", ["ab"], 3),
        ("nothing", ["\n", "x"], -1),
        ("nothing", [], -1),
        ("é.ü", [".ü"], 3),
    ],
)
def test_a_response_ends_with_the_token_that_completes_a_stop_text(
    text: str, stop: list[str], after: int
) -> None:
    assert stops_after(text, *stop) == after


def test_a_token_may_end_with_more_than_the_stop_text() -> None:
    tokenizer = shipped_tokenizer()
    rules = ResponseRules(tokenizer, len(tokenizer), tokenizer.eos_token_id)
    ids = tokenizer.encode('so "root_cause_analysis":', add_special_tokens=False)
    assert rules.stops(np.array(ids), ["cause_analysis"])
    assert not rules.stops(np.array(ids[:-1]), ["cause_analysis"])


def test_only_tokens_that_continue_a_fitting_text_may_be_drawn() -> None:
    pytest.importorskip("xgrammar")
    tokenizer = shipped_tokenizer()
    rules = ResponseRules(tokenizer, len(tokenizer), tokenizer.eos_token_id)
    grammar, free = rules.grammar(json_schema(4)), rules.grammar(None)
    assert free is None
    random, drawn = torch.Generator().manual_seed(0), list[int]()
    while not drawn or drawn[-1] != tokenizer.eos_token_id:
        logits = torch.randn(2, len(tokenizer), generator=random)
        logits[:, tokenizer.eos_token_id] += 20.0  # as soon as it may
        before = logits.clone()
        forbid(logits, [free, grammar])
        assert torch.equal(logits[0], before[0]), "a row without a grammar"
        drawn.append(int(logits[1].argmax()))
        assert grammar.accept_token(drawn[-1])
    text = tokenizer.decode(drawn, skip_special_tokens=True)
    assert text.startswith('{"trajectory_summary":"') and '","retry_from_step":' in text
    parse(text, 4)


def test_the_text_may_have_to_fit_a_structural_tag_and_a_broken_one_is_refused() -> None:
    pytest.importorskip("xgrammar")
    tokenizer = shipped_tokenizer()
    rules = ResponseRules(tokenizer, len(tokenizer), tokenizer.eos_token_id)
    said = {"type": "structural_tag", "format": {"type": "const_string", "value": "use saw"}}
    grammar = rules.grammar(None, json.dumps(said))
    ids = tokenizer.encode("use saw", add_special_tokens=False)
    assert all(grammar.accept_token(token) for token in ids)
    assert not rules.grammar(None, json.dumps(said)).accept_token(ids[-1])
    with pytest.raises(RequestRefused) as refused:
        rules.grammar(None, "{}")
    assert refused.value.cause == "grammar_refused"


def test_without_the_library_any_text_may_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_rules, "find_spec", lambda name: None)
    assert CHARACTERS.grammar({"type": "object"}) is None
