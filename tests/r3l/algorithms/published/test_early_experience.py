"""Early Experience: the tokens that the environment answered are learned as text."""

import numpy as np
import pytest
import torch

from r3l.algorithms.losses import TokenBatch
from r3l.algorithms.published.early_experience import next_observations
from tests.r3l.algorithms.fakes import batch_of, get


def test_what_the_environment_answered_is_trained_next_to_the_attempts(make_trajectory):
    won = make_trajectory([2, 1], slot=0, reward=1.0)
    lost = make_trajectory([3], slot=1, reward=0.0)
    samples = [next_observations(one) for one in (won, lost)]
    for mask, one in zip(samples, (won, lost), strict=True):
        first = one.step_spans[0, 0]
        assert not (mask & one.response_mask).any() and not mask[:first].any()
        assert (mask | one.response_mask)[first:].all()
    batch = batch_of([won, lost], weights=(0.5,))
    rows = get("early_experience", group_size=2).rows(batch)
    answers = [row for row in rows if row.loss == "sft"]
    tokens = sum(int(mask.sum()) for mask in samples)
    assert {row.weights[0] for row in answers} == {0.5 / tokens}
    assert sum(int(row.mask.sum()) for row in answers) == tokens
    plain = get("early_experience", group_size=2, sft_weight=0).rows(batch)
    assert [row.loss for row in plain] == ["policy", "policy"]


def test_the_loss_of_two_attempts_in_literal_numbers(make_trajectory):
    """Two attempts of a response token, two tokens of an observation, and a response token."""
    won, lost = (make_trajectory([1, 1], slot=slot, reward=1.0 - slot) for slot in (0, 1))
    settings = {"group_size": 2, "std": "none", "normalize": "token", "sft_weight": 0.3}
    algorithm = get("early_experience", **settings)
    rows = algorithm.rows(batch_of([won, lost]))
    assert [row.loss for row in rows] == ["policy", "policy", "sft", "sft"]
    of_won, of_lost = [-0.9, -1.0, -2.0, -1.1], [-1.0, -0.5, -1.5, -0.8]
    columns = torch.zeros(4, 3)  # the prompt has 3 tokens
    logprobs_BT = torch.cat([columns, torch.tensor([of_won, of_lost] * 2)], 1)

    def padded(name):
        values = [getattr(row, name) for row in rows]
        return torch.tensor(np.array([np.pad(own, (0, 7 - len(own))) for own in values]))

    micro = TokenBatch(
        logprobs_BT,
        padded("old_logprobs"),
        padded("mask"),
        padded("advantages"),
        padded("weights"),
        torch.zeros(4, dtype=torch.bool),
        losses=tuple(row.loss for row in rows),
    )
    parts = algorithm.loss(micro)
    # Advantages 1/2 and −1/2, log π_old −1: −(0.5·e^0.1 + 0.5·e^−0.1 − 0.5·1 − 0.5·e^0.2)/4. The
    # clip at 1.2 does not cut e^0.2, because its advantage is negative.
    assert parts["policy"].item() == pytest.approx(0.026424, abs=1e-6)
    assert micro.measured["loss_sft"] == pytest.approx((1.0 + 2.0 + 0.5 + 1.5) / 4)
    assert sum(parts.values()).item() == pytest.approx(0.026424 + 0.3 * 1.25, abs=1e-6)
