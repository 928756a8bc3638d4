"""Reliance: what a retry loses without its guidance."""

import math

import numpy as np
import pytest

from r3l.algorithms.shared import reliance
from r3l.records import Shown
from tests.r3l.algorithms.fakes import batch_of


def test_reliance_is_a_mean_over_the_tokens_from_the_pivot_on(make_trajectory):
    base = make_trajectory([2, 2], slot=0)
    retry = make_trajectory([2, 2], slot=1, of=0, pivot=1, temperature=0.5)
    batch = batch_of([base, retry], version=0)
    [query] = reliance.queries(batch)
    assert query.mask.tolist() == [False] * 7 + [True] * 2 and query.temperature == 0.5
    answer = np.where(query.mask, [0.0] * 7 + [-1.5, -1.1], 0).astype(np.float32)
    [group] = batch.groups
    found = reliance.reliance(batch.with_answers({query.key: answer}), group, retry)
    assert found == pytest.approx(-0.3)  # stored are −1 and −1
    assert reliance.reliance(batch, group, retry) is None


def test_an_imported_retry_without_log_probabilities_has_no_reliance(make_trajectory):
    retry = make_trajectory(slot=1, of=0, pivot=0, source="people")
    retry.logprobs[:] = 0.0
    assert not list(reliance.queries(batch_of([make_trajectory(slot=0), retry])))


@pytest.mark.parametrize("version", [5, None])
def test_the_guided_policy_is_asked_too_unless_the_current_weights_sampled_the_retry(
    make_trajectory, version
):
    base = make_trajectory([2], slot=0)
    shown = Shown(np.array([7, 8, 9, 7], np.int32), keep=0, resume=3)  # 3 prompt tokens, 2 sampled
    retry = make_trajectory([2], slot=1, of=0, pivot=0, temperature=0.5, shown=shown)
    batch = batch_of([base, retry], version=version)
    without, guided = reliance.queries(batch)
    assert guided.token_ids[:4].tolist() == [7, 8, 9, 7] and guided.temperature == 0.5
    assert np.flatnonzero(guided.mask).tolist() == [4, 5]
    assert guided.token_ids[4:].tolist() == retry.token_ids[3:5].tolist()
    # The retry was trained: without guidance −0.2 and −0.4, with it −0.1 and −0.1. Δ is −0.2 and
    # w = e^(−2/3). The stored −1 and −1 would give Δ = 0.7 and w = 1.
    answers = {
        without.key: np.array([0, 0, 0, -0.2, -0.4], np.float32),
        guided.key: np.array([0, 0, 0, 0, -0.1, -0.1], np.float32),
    }
    [group] = batch.groups
    delta = reliance.reliance(batch.with_answers(answers), group, retry)
    assert delta == pytest.approx(-0.2) and reliance.weight(delta) == pytest.approx(
        math.exp(-2 / 3)
    )


def test_weights_in_literal_numbers():
    found = [reliance.weight(delta) for delta in (0.0, 0.5, -0.3, -0.6, None)]
    assert found == pytest.approx([1.0, 1.0, math.exp(-1), math.exp(-2), 1.0])
    assert reliance.weight(-1.0, scale=0.5) == pytest.approx(math.exp(-2))
