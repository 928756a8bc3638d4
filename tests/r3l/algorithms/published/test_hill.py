"""HiLL: reflections are paid by their retries, the less the more these relied on them."""

import math

import numpy as np
import pytest
import torch

from r3l.algorithms import rows
from r3l.algorithms.batch import Batch
from r3l.algorithms.losses import TokenBatch
from r3l.errors import UserError
from tests.r3l.algorithms.fakes import batch_of, get, group_of, loss_of, thought_about

SETTINGS = {"group_size": 4, "std": "none"}


def explored(make_trajectory):
    """Two failures. The first one's retry succeeds; its tokens lose 0.15 and 0.45 nats without the
    guidance. The second one's fails, with 0.3 nats more."""
    bases = [make_trajectory([2], slot=i, reward=0.0) for i in range(2)]
    retries = [
        make_trajectory([2], slot=2 + i, of=i, pivot=0, reward=1.0 - i, reflection=f"reflect-{i}")
        for i in range(2)
    ]
    thoughts = [thought_about(i, temperature=0.7) for i in range(2)]
    batch = batch_of([*bases, *retries])
    batch = type(batch)([group_of([*bases, *retries], thoughts)], version=0)
    asked = get("hill", **SETTINGS).queries(batch)
    answers = {query.key: np.where(query.mask, -1.0, 0).astype(np.float32) for query in asked}
    first, second = answers.values()
    first[3:5] += [-0.15, -0.45]
    second[3:5] += 0.3
    return batch.with_answers(answers)


def test_a_reflection_has_the_weighed_advantage_of_its_retry_with_its_sign(make_trajectory):
    found = get("hill", **SETTINGS).rows(explored(make_trajectory))
    good, bad = [row for row in found if row.loss == "reflection"]
    # Advantages 3/4 and −1/4. Δ is −0.3 and +0.3: w = 1/e and 1.
    assert good.advantages == pytest.approx(0.75 / math.e)
    assert bad.advantages == pytest.approx(-0.25)
    for row in (good, bad):
        assert row.mask.tolist() == [False, False, True, True] and row.temperature == 0.7
        assert row.weights[row.mask].tolist() == [1 / 8, 1 / 8]  # four attempts, two tokens
    assert len([row for row in found if row.loss == "policy"]) == 4


def test_one_reflection_beside_64_attempts_weighs_as_one_of_them(make_trajectory):
    attempts = [make_trajectory([2], slot=i, reward=0.0) for i in range(63)]
    retry = make_trajectory([2], slot=63, of=0, pivot=0, reward=1.0, reflection="reflect-0")
    batch = Batch([group_of([*attempts, retry], [thought_about(0)])])
    for normalize, want in (
        ("trajectory", 1 / (64 * 2)), ("attempt", 1 / (64 * 2)), ("group", 1 / (64 * 2)),
        ("token", 1 / 128), ("sum", 1 / 64),
    ):  # fmt: skip
        algorithm = get("hill", std="none", normalize=normalize)
        asked = algorithm.queries(batch)
        answers = {query.key: np.where(query.mask, -1.0, 0).astype("f4") for query in asked}
        found = algorithm.rows(batch.with_answers(answers))
        [thought] = [row for row in found if row.loss == "reflection"]
        assert thought.weights[thought.mask].tolist() == [want, want], normalize
        [own] = {float(row.weights[row.mask][0]) for row in found if row.loss == "policy"}
        assert own == want, normalize


def test_the_loss_on_reflections_in_literal_numbers(make_trajectory):
    algorithm = get("hill", **SETTINGS, reflection_weight=0.5)
    own = [row for row in algorithm.rows(explored(make_trajectory)) if row.loss == "reflection"]
    logprobs_BT = torch.tensor([[0.0, 0.0, -1.0, -2.0], [0.0, 0.0, -3.0, -1.0]])

    def stacked(name):
        return torch.tensor(np.array([getattr(row, name) for row in own]))

    micro = TokenBatch(
        logprobs_BT, logprobs_BT - math.log(1.1), stacked("mask"), stacked("advantages"),
        stacked("weights"),
        torch.zeros(2, dtype=torch.bool), losses=("reflection", "reflection"),
    )  # fmt: skip
    parts, measured = loss_of(algorithm, micro)
    want = -1.1 * (0.75 / math.e * 2 - 0.25 * 2) / 8  # ratios of 1.1
    assert measured["loss_reflection"] == pytest.approx(want, rel=1e-6)
    assert parts.item() == pytest.approx(0.5 * want, rel=1e-6)


def test_a_reflection_that_the_policy_has_left_has_no_gradient_as_an_attempt_has_none():
    for name in ("reflection", "policy"):
        logprobs_BT = torch.tensor([[0.0, -20.0], [0.0, 0.1]], requires_grad=True)
        micro = TokenBatch(
            logprobs_BT, torch.zeros(2, 2), torch.tensor([[False, True]] * 2),
            torch.tensor([[-1.0] * 2, [2.0] * 2]), torch.ones(2, 2),
            torch.zeros(2, dtype=torch.bool), losses=(name, name),
        )  # fmt: skip
        loss, _ = loss_of(get("hill", **SETTINGS), micro)
        loss.backward()
        # Â = −1 at a ratio of e^−20: clipped. Â = 2 at a ratio of e^0.1: −r·Â.
        assert logprobs_BT.grad[:, 1].tolist() == pytest.approx([0.0, -2 * math.exp(0.1)]), name


def test_an_imported_reflection_has_a_ratio_of_1(make_trajectory):
    rows = get("hill", **SETTINGS).rows(explored(make_trajectory))
    assert [row.measured for row in rows if row.loss == "reflection"] == [False, False]


def test_a_retry_that_relies_too_much_is_left_out_and_its_reflection_is_not(make_trajectory):
    batch = explored(make_trajectory)
    algorithm = get("hill", **SETTINGS, reliance_least=-0.2)
    [values] = algorithm.advantages(batch)
    assert rows.kept(values).tolist() == [True, True, False, True]
    assert [row.loss for row in algorithm.rows(batch)].count("reflection") == 2
    [values] = get("hill", **SETTINGS, reliance_least=-0.4).advantages(batch)
    assert rows.kept(values).all()


def test_without_answers_a_batch_with_retries_is_refused(make_trajectory):
    batch = explored(make_trajectory).with_answers({})
    with pytest.raises(UserError, match=r"call batch = trainer\.answer"):
        get("hill", **SETTINGS).rows(batch)
    plain = get("hill", **SETTINGS, reflection_weight=0)
    assert [row.loss for row in plain.rows(batch)] == ["policy"] * 4 and not plain.queries(batch)


def test_only_failures_are_retried(make_trajectory):
    algorithm = get("hill")
    assert not algorithm.reflects_on(make_trajectory(reward=1.0))
    assert algorithm.reflects_on(make_trajectory(reward=0.5))
