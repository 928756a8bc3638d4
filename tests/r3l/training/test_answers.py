"""Answers of queries: those of a model read one sequence at a time, whoever computes them."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM

from r3l.algorithms.queries import Query, TopK
from r3l.errors import UserError
from r3l.training.answers import Answers
from r3l.training.micro_batch import MicroBatch, micro_batches
from r3l.training.model import PolicyModule, Scores
from tests.r3l.training.fakes import families

VOCABULARY, CPU = 16, torch.device("cpu")


def model(seed: int) -> Any:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.5}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, **sizes, **heads)).eval()


MODELS = {"current": model(0), "reference": model(1)}
MODULES = {name: PolicyModule(model(seed), "tree") for seed, name in enumerate(MODELS)}


def score(weights: str, micro: MicroBatch, top: int) -> Scores:
    scores: Scores = MODULES[weights](micro.nodes, micro.mask_BT, micro.temperatures_B, top)
    return scores


def asked(queries: list[Query], ranks: int = 1, budget: int = 40) -> dict[Any, Any]:
    """The answers, of which each of several ranks computes a part."""
    answers = Answers(queries, set(MODELS), VOCABULARY)
    for rank in range(ranks):
        answers.fill(
            score,
            lambda rows, rank=rank: micro_batches(rows, budget, ranks, shared=True)[rank],
            CPU,
        )
    return answers.read()


def by_hand(query: Query) -> Any:
    """The answer from all logits of one sequence."""
    ids = torch.tensor(query.token_ids.astype(np.int64))
    with torch.no_grad():
        logits = MODELS[query.weights](ids[None]).logits[0, :-1] / query.temperature
    full = torch.nn.functional.pad(logits.log_softmax(-1), (0, 0, 1, 0))
    mask = torch.tensor(query.mask)
    if query.find == "logprobs":
        return full.gather(1, ids[:, None])[:, 0] * mask
    if query.find == "entropy":
        return -(full.exp() * full).sum(-1) * mask
    best, places = full.topk(query.k)
    return best * mask[:, None], places * mask[:, None]


@st.composite
def questions(draw):
    made = []
    for number, ids in enumerate(draw(families())):
        ids = np.concatenate([ids[:1], ids]).astype(np.int32)
        mask = np.array(draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))))
        mask[0] = False
        find = draw(st.sampled_from(["logprobs", "entropy", "topk"]))
        weights = draw(st.sampled_from(list(MODELS)))
        heat = draw(st.sampled_from([0.7, 1.0, 1.5]))
        k = draw(st.integers(1, 3)) if find == "topk" else 0
        made.append(Query(("q", number), ids, mask, find, weights, heat, k))
    return made


@settings(deadline=None, max_examples=40)
@given(questions(), st.integers(1, 3))
def test_answers_are_those_of_one_sequence_at_a_time_on_any_number_of_ranks(queries, ranks):
    found = asked(queries, ranks)
    assert list(found) == [query.key for query in queries]
    for query in queries:
        answer, expected = found[query.key], by_hand(query)
        if isinstance(answer, TopK):
            best, places = expected
            assert answer.logprobs.shape == answer.token_ids.shape == (len(query.mask), query.k)
            assert answer.logprobs == pytest.approx(best.numpy(), abs=1e-5)
            assert (answer.token_ids == places.numpy()).all()
        else:
            assert answer.dtype == np.float32 and answer.shape == query.mask.shape
            assert answer == pytest.approx(expected.numpy(), abs=1e-5)


def test_a_query_about_no_token_costs_no_pass_and_is_answered_with_zeros() -> None:
    ids = np.arange(3, dtype=np.int32)
    answers = Answers([Query("none", ids, ids < 0, "topk", k=2)], {"current"}, VOCABULARY)
    answers.fill(lambda *_: pytest.fail("no pass"), lambda rows: [rows], CPU)
    assert answers.longest == 0 and not answers.read()["none"].logprobs.any()


def test_a_number_of_numpy_is_a_plain_one_in_a_pass_which_other_ranks_are_told() -> None:
    ids, k = np.arange(3, dtype=np.int32), np.int64(2)
    answers = Answers([Query("key", ids, ids > 0, "topk", k=k)], {"current"}, VOCABULARY)  # type: ignore[arg-type]
    assert [type(top) for _, top in answers.passes] == [int]


def test_what_no_rank_computed_stays_zero_and_may_be_filled_later() -> None:
    ids = np.arange(4, dtype=np.int32)
    answers = Answers([Query("key", ids, ids > 0)], {"current"}, VOCABULARY)
    answers.fill(score, lambda rows: [], CPU)
    assert not answers.read()["key"].any()
    answers.fill(score, lambda rows: [rows, []], CPU)  # a rank's last micro-batch may be empty
    assert answers.read()["key"][1:].all() and answers.longest == 4


IDS = np.arange(3, dtype=np.int32)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"weights": "averaged"}, "under the averaged weights, .* in the algorithm's `needs`"),
        ({"mask": np.array([True] * 3)}, "the first token, which nothing predicts"),
        ({"mask": np.array([True] * 2)}, r"mask must be bool of shape \(3,\)"),
        ({"mask": np.array([0, 1, 1])}, "mask must be bool"),
        ({"temperature": 0.0}, "temperature is 0.0; it must be above 0"),
        ({"find": "topk"}, "k is 0; topk needs one token or more"),
        ({"k": 2}, "k is 2; topk needs .* other queries none"),
        ({"find": "topk", "k": 17}, "k is 17, but the model's vocabulary has 16"),
    ],
)
def test_a_query_that_cannot_be_answered_is_refused_by_its_key(given: Any, said: str) -> None:
    query = Query(**{"key": "why", "token_ids": IDS, "mask": IDS > 0} | given)
    with pytest.raises(UserError, match=f"query 'why': .*{said}"):
        Answers([query], {"current"}, VOCABULARY)


def test_two_queries_of_one_key_are_refused() -> None:
    with pytest.raises(UserError, match="query 'same': another query has this key"):
        Answers([Query("same", IDS, IDS > 0)] * 2, {"current"}, VOCABULARY)
