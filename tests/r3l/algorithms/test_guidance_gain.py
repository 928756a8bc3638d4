"""The guidance gain in literal numbers, unbiased where comparing with first attempts is not."""

import math

import numpy as np
import pytest

from r3l.algorithms.guidance_gain import (
    UNSOLVED,
    GroupGain,
    estimate,
    of_group,
    retry_probability,
)


def test_the_gain_of_a_group_leaves_the_retried_attempt_out():
    attempts = [(0, -1, 0.0), (1, -1, 1.0), (2, -1, 0.5), (3, 0, 1.0)]  # slot, of, reward
    assert of_group(attempts) == (1.0 - 0.75, 1)
    assert of_group([*attempts, (4, 1, 0.0)]) == (0.25 - 0.25, 2)
    assert of_group(attempts[:3]) == (0.0, 0)
    assert of_group([(0, -1, 0.0), (1, 0, 1.0)]) == (0.0, 0)  # nothing to compare


def test_no_gain_is_measured_where_only_groups_without_a_success_are_retried():
    """Useless guidance would seem to gain: its retries succeed by chance, and the others never."""
    attempts = [(0, -1, 0.0), (1, -1, 0.0), (2, 0, 1.0)]
    assert of_group(attempts) == (1.0, 1) and of_group(attempts, UNSOLVED) == (0.0, 0)
    assert of_group(attempts, "mine") == (1.0, 1)


def test_every_retry_of_an_attempt_counts_and_a_retry_of_a_retry_does_not():
    attempts = [(0, -1, 0.0), (1, -1, 0.5), (2, 0, 1.0), (3, 0, 0.25)]
    assert of_group(attempts) == (0.5 - 0.25, 2)
    assert of_group([*attempts, (4, 2, 1.0), (5, 9, 1.0)]) == (0.25, 2)


def test_the_estimate_has_groups_as_clusters():
    # m = 3/4; deviations 1 − 1.5 = −0.5 and 2 − 1.5 = 0.5: se = √0.5 / 4
    m, se = estimate([GroupGain(1.0, 2), GroupGain(2.0, 2), GroupGain(0.0, 0)])
    assert (m, se) == (0.75, pytest.approx(math.sqrt(0.5) / 4))
    assert all(math.isnan(value) for value in estimate([GroupGain(0.0, 0)]))


def test_the_probability_of_retries_follows_the_estimate_between_its_floor_and_1():
    few = [GroupGain(-1.0, 1)] * 15
    assert retry_probability(few) == 1.0 and retry_probability([*few, *few]) == 1 / 8
    mixed = [GroupGain(1.0, 1), GroupGain(-1.0, 1)] * 8
    assert retry_probability(mixed) == 0.5
    # m = 1/4, se = √15 / 16: Φ(1.0328) = 0.8491
    better = [GroupGain(1.0, 1)] * 10 + [GroupGain(-1.0, 1)] * 6
    assert retry_probability(better) == pytest.approx(0.8491, abs=1e-4)
    assert retry_probability([GroupGain(0.5, 2)] * 16) == 1.0
    assert retry_probability([GroupGain(0.0, 2)] * 16) == 0.5
    assert retry_probability([*[GroupGain(1.0, 1)] * 64, *few * 9]) == 1.0  # newest 64 alone


def test_useless_guidance_has_no_gain_though_failures_gather_at_hard_tasks():
    rng = np.random.default_rng(0)
    gains, first, again = [], [], []
    for chance in rng.beta(0.4, 1.6, 20_000):
        bases = (rng.random(4) < chance).astype(float).tolist()
        retries = [(i, float(rng.random() < chance)) for i in range(4) if bases[i] < 1]
        first += bases
        again += [reward for _, reward in retries]
        attempts = [(slot, -1, reward) for slot, reward in enumerate(bases)]
        gains.append(of_group(attempts + [(4 + i, i, reward) for i, reward in retries]))
    m, se = estimate(gains)
    assert abs(m) < 3 * se and se < 0.005
    assert np.mean(first) == pytest.approx(0.2, abs=0.01) and np.mean(again) < 0.15
