"""Corrections: weights of literal ratios, and the gradient they leave."""

import math

import numpy as np
import pytest
import torch

from r3l.algorithms import losses
from r3l.algorithms.losses import TokenBatch, ratio_corrected
from r3l.errors import UserError
from tests.r3l.algorithms.fakes import batch_of as one_group
from tests.r3l.algorithms.fakes import get, loss_of, planned

RATIOS = [[0.25, 1.0, 4.0], [1.5, 1.2, 1.0]]
WEIGHTS = {
    "token_truncate": [[0.25, 1.0, 2.0], [1.5, 1.2, 1.0]],
    "token_mask": [[0.0, 1.0, 0.0], [1.5, 1.2, 1.0]],
    "sequence_truncate": [[1.0] * 3, [1.8] * 3],
    "sequence_mask": [[1.0] * 3, [1.8] * 3],
}


def batch_of(ratios, distilled=(False, False), unmeasured=None):
    new = torch.full((2, 3), -2.0, dtype=torch.float64, requires_grad=True)
    old = -2.0 - torch.tensor(ratios, dtype=torch.float64).log()
    return TokenBatch(
        logprobs_BT=new,
        old_logprobs_BT=old,
        mask_BT=torch.ones(2, 3, dtype=torch.bool),
        advantages_BT=torch.tensor([[1.0] * 3, [-2.0] * 3], dtype=torch.float64),
        weights_BT=torch.ones(2, 3, dtype=torch.float64),
        distilled_B=torch.tensor(distilled),
        unmeasured_B=None if unmeasured is None else torch.tensor(unmeasured),
    )


@pytest.mark.parametrize("rule", WEIGHTS)
@pytest.mark.parametrize("loss", [losses.policy_gradient, losses.importance])
def test_every_token_has_the_weight_of_its_rule(rule, loss):
    batch = batch_of(RATIOS)
    terms, measured = ratio_corrected(batch, loss=loss, rule=rule, low=0.5, high=2.0)
    [gradient] = torch.autograd.grad(terms.sum(), batch.logprobs_BT)
    want = -torch.tensor(WEIGHTS[rule], dtype=torch.float64) * batch.advantages_BT
    assert torch.allclose(gradient, want)
    dropped = sum(weight == 0 for row in WEIGHTS[rule] for weight in row)
    assert float(measured["ratio_correction_dropped"].sum()) == dropped


def test_a_sequence_mask_drops_a_whole_sequence_beyond_the_limit():
    batch = batch_of([[2.0, 1.5, 1.0], [1.0, 1.0, 1.0]])
    terms, _ = ratio_corrected(
        batch, loss=losses.policy_gradient, rule="sequence_mask", low=0.5, high=2.0
    )
    assert terms[0].tolist() == [0.0] * 3 and (terms[1] != 0).all()


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "reflect_grpo", "critique_grpo", "r3",
                                  "arpo", "spear", "rloo", "r3l"])  # fmt: skip
def test_every_ratio_loss_takes_a_correction(name):
    settings = {"kl_coef": 0.0, "ratio_correction": "token_mask"}
    value, parts = loss_of(get(name, **settings), batch_of(RATIOS))
    assert math.isfinite(value.item()) and parts["ratio_correction_dropped"] == 1.0


@pytest.mark.parametrize(("high", "rule"), [(5.0, "token_mask"), (2.0, "token_truncate")])
def test_the_limit_follows_the_rule_unless_it_is_set(high, rule):
    def limit(**more):
        algorithm = get("grpo", ratio_correction=rule, **more)
        return algorithm.corrected(algorithm.clipped_ratio).keywords["high"]

    assert limit() == high and limit(ratio_correction_high=3.0) == 3.0


def test_distilled_rows_are_not_corrected():
    algorithm = get("grpo", kl_coef=0.0, ratio_correction="token_mask")
    value, parts = loss_of(algorithm, batch_of(RATIOS, distilled=(True, False)))
    assert parts["ratio_correction_dropped"] == 0.0
    want = -(3 * 1.0) + 2 * (1.5 + 1.2 + 1.0)
    assert value.item() == pytest.approx(want)


@pytest.mark.parametrize("rule", [*WEIGHTS, "none"])
def test_rows_without_log_probabilities_have_a_ratio_of_1_under_every_rule(rule):
    algorithm = get("grpo", kl_coef=0.0, ratio_correction=rule)
    batch = batch_of([[20.0, 1e-6, 4.0], [1.0, 1.0, 1.0]], unmeasured=(True, False))
    value, parts = loss_of(algorithm, batch)
    [gradient] = torch.autograd.grad(value, batch.logprobs_BT)
    assert value.item() == pytest.approx(-(3 * 1.0) + 3 * 2.0)
    assert gradient.tolist() == [pytest.approx([-1.0] * 3), pytest.approx([2.0] * 3)]
    assert parts.get("ratio_correction_dropped", 0.0) == 0.0


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "rloo", "r3", "arpo", "spear"])
def test_no_ratio_loss_of_a_row_without_log_probabilities_depends_on_what_is_stored(name):
    def value(ratio):
        batch = batch_of([[ratio] * 3, [1.1, 0.9, 1.0]], unmeasured=(True, False))
        return loss_of(get(name, kl_coef=0.0), batch)[0].item()

    assert value(1e-6) == value(1.0) == value(1e6)


def test_a_group_of_one_base_attempt_has_no_deviation_to_divide_by():
    for name, size in (("grpo", 1), ("critique_grpo", 1), ("reflect_grpo", 1)):
        with pytest.raises(UserError, match="a group of one base attempt has no standard"):
            get(name, group_size=size)
        assert planned(get(name, group_size=size, std="none"))


def test_the_reference_is_asked_for_the_trained_tokens_of_kept_attempts_alone(make_trajectory):
    attempts = [
        make_trajectory([2, 3], slot=0, reward=0.0, temperature=0.7),
        make_trajectory([2, 3], slot=1, reward=1.0, temperature=0.0),
        make_trajectory([2, 3], slot=2, reward=0.0, of=0, pivot=1),
    ]
    asked = get("critique_grpo", kl_coef=0.1).queries(one_group(attempts))
    assert [query.key for query in asked] == [("reference", "g", "g", i, 0) for i in range(2)]
    assert [query.temperature for query in asked] == [0.7, 1.0]
    for query, one in zip(asked, attempts, strict=False):
        assert (query.find, query.weights) == ("logprobs", "reference")
        end = np.flatnonzero(one.response_mask)[-1] + 1
        assert query.token_ids.tolist() == one.token_ids[:end].tolist()
        assert query.mask.tolist() == one.response_mask[:end].tolist()


def test_rows_hold_what_the_reference_answered(make_trajectory):
    attempts = [make_trajectory(slot=i, reward=float(i)) for i in range(2)]
    algorithm, batch = get("grpo"), one_group(attempts)
    answers = {
        query.key: np.full(len(query.mask), -i, np.float32)
        for i, query in enumerate(algorithm.queries(batch))
    }
    rows = algorithm.rows(batch.with_answers(answers))
    assert [set(row.reference.tolist()) for row in rows] == [{0.0}, {-1.0}]
    assert all(row.reference is None for row in algorithm.rows(batch))
