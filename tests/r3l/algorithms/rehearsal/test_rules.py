"""Rules for what methods return: what keeps them, and what each says if it is broken."""

from dataclasses import replace

import numpy as np
import pytest

from r3l.algorithms.queries import Query, TopK
from r3l.algorithms.rehearsal import rules
from r3l.algorithms.rows import Row
from r3l.records import AttemptKey, GroupPlan
from tests.r3l.algorithms.fakes import stored

KEY = AttemptKey("g1", 0)
IDS = np.arange(4, dtype=np.int32)
QUERY = Query(("mine", 1), IDS, IDS > 0)
ROW = Row(IDS, IDS > 1, np.zeros(4, np.float32), np.ones(4, np.float32), np.ones(4))


def test_what_keeps_the_rules_breaks_none():
    assert not rules.of_plan(GroupPlan(1024, "mine", (KEY,)), [KEY])
    assert not rules.of_cause("") and not rules.of_cause("too easy")
    assert not rules.of_recalled((), []) and not rules.of_recalled(
        [stored("g", 1)], [stored("g", 1)]
    )
    assert not rules.of_query(QUERY, (), ["other"]) and not rules.of_row(ROW)
    assert not rules.of_query(
        replace(QUERY, weights="averaged", find="topk", k=2), ["averaged"], []
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mask": IDS[1:] > 1}, "its mask must be bool of shape (4,), as its tokens are"),
        ({"mask": IDS}, "its mask must be bool of shape (4,)"),
        ({"mask": IDS >= 0}, "asks about the first token, which nothing predicts; mask it out"),
        ({"find": "topk"}, "k is 0; topk needs one token or more"),
        ({"k": 3}, "k is 3; topk needs one token or more, other queries none"),
        ({"find": "speed"}, "it asks for speed under the current weights; ask for one of logprobs"),
        (
            {"weights": "averaged"},
            "it asks for logprobs under the averaged weights; ask for one of",
        ),
        ({"key": ("mine", 2)}, "another query has this key; give each its own"),
        ({"key": ["mine"]}, "the key ['mine'] cannot be hashed; use a tuple"),
    ],
)
def test_a_query_keeps_the_rules_of_the_learner(changed, said):
    assert said in rules.of_query(replace(QUERY, **changed), ("reference",), {("mine", 2): 0})


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (None, "returned None; return a dict of names and numbers"),
        ({1: 1.0}, "measures 1; a name begins with group/"),
        ({"speed": 1.0}, "measures 'speed'; a name begins with group/"),
        ({"group/won": True}, "measures True as group/won; it must be a number"),
        ({"group/won": [1]}, "measures [1] as group/won; it must be a number"),
        ({"group/won": 1, "group/lost": float("nan")}, ""),
    ],
)
def test_metrics_are_numbers_of_groups(metrics, said):
    assert rules.of_metrics(metrics) == said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mask": IDS}, "a row's mask is of int32; it must be of bool"),
        ({"mask": IDS < 2}, "a row trains its first token, which nothing predicts; mask it out"),
        ({"weights": np.full(4, np.nan)}, "the weights of a row are not finite: array([nan, nan])"),
        ({"reference": np.full(4, np.inf)}, "the reference of a row are not finite"),
    ],
)
def test_a_row_keeps_the_rules_of_the_learner(changed, said):
    assert rules.of_row(replace(ROW, **changed)).startswith(said)


def test_what_is_not_trained_may_be_anything():
    assert not rules.of_row(replace(ROW, advantages=np.array([np.nan, np.inf, 1, 2], np.float32)))


def test_answers_have_the_shape_that_the_learner_gives_them():
    for find, value in (("logprobs", -0.6), ("entropy", 0.9)):
        found = rules.made_up_answer(replace(QUERY, find=find))
        assert found.dtype == np.float32 and found.tolist() == pytest.approx([0] + [value] * 3)
    top = rules.made_up_answer(replace(QUERY, find="topk", k=2))
    assert isinstance(top, TopK) and top.token_ids.shape == top.logprobs.shape == (4, 2)
    assert not top.logprobs[0].any() and (np.exp(top.logprobs[1:]).sum(1) <= 1).all()
