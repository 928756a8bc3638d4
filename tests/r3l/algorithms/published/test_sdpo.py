"""SDPO: advantages of tokens by what the advised policy would have said."""

import numpy as np
import pytest
import torch

from r3l.algorithms.losses import TokenBatch
from tests.r3l.algorithms.fakes import get, loss_of
from tests.r3l.algorithms.shared.test_re_reading import answers_of, explored, reading


def test_advantages_of_tokens_in_literal_numbers():
    algorithm = reading("sdpo", distilled_share=0.25)
    batch = explored(algorithm)
    batch = batch.with_answers(answers_of(algorithm, batch, teacher=-3.0, own=-1.0))
    found = [np.array([0.0, 0.8, 0.0, -0.4])]
    [tokens] = algorithm.token_advantages(batch, found)
    attempts = batch.groups[0].trajectories
    for values, attempt, own in zip(tokens, attempts, found[0], strict=True):
        taught = attempt.responses_from(1)
        assert values[taught] == pytest.approx(0.75 * own + 0.25 * -2.0)
        assert values[~taught] == pytest.approx(0.75 * own)


def test_a_group_of_failures_learns_from_advice_alone():
    algorithm = reading("sdpo")
    batch = explored(algorithm)
    batch = batch.with_answers(answers_of(algorithm, batch))
    rows = algorithm.rows(batch)
    assert len(rows) == 4
    for row in rows:
        assert set(row.advantages[row.mask].tolist()) == {0.0, 0.25}
    assert not reading("sdpo", distilled_share=0.0).rows(batch)


def test_the_ratio_is_truncated_at_2_and_has_no_gradient():
    logprobs_BT = torch.tensor([[-1.0, -1.0, -1.0]], requires_grad=True)
    batch = TokenBatch(
        logprobs_BT, torch.tensor([[-1.0, -3.0, -0.5]]), torch.ones(1, 3, dtype=torch.bool),
        torch.tensor([[0.5, 0.5, -1.0]]), torch.ones(1, 3), torch.zeros(1, dtype=torch.bool),
    )  # fmt: skip
    loss, _ = loss_of(get("sdpo"), batch)
    loss.backward()
    ratio = float(np.exp(-0.5))  # of the third token; the second has e², more than 2
    assert loss.item() == pytest.approx(0.5 + 2 * 0.5 - ratio)
    assert logprobs_BT.grad.tolist()[0] == pytest.approx([-0.5, -1.0, ratio])
