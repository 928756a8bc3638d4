"""Symptoms of sick engines, by literal values."""

import math

import numpy as np
import pytest

from r3l.rollout.engine_symptoms import Symptom, of_logprobs, of_versions


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_a_log_probability_that_is_not_finite_is_a_symptom(strange: float) -> None:
    assert of_logprobs((-0.5, strange, -2.0)) == Symptom(
        "logprobs_not_finite", "1 of 3 log-probabilities are NaN or infinite"
    )


def test_a_log_probability_above_0_is_a_symptom_unless_it_is_rounding() -> None:
    assert of_logprobs(np.array([-1.0, 0.25], np.float32)) == Symptom(
        "logprobs_positive", "a log-probability is 0.25, above 0"
    )
    assert of_logprobs((-1.0, 0.0, 1e-6)) is None
    assert of_logprobs((-3.4e38,)) is None
    assert of_logprobs(()) is None


def test_versions_below_0_and_of_the_future_are_symptoms() -> None:
    assert of_versions([3, -1], 7) == Symptom("version_negative", "policy version -1 is below 0")
    assert of_versions([0, 8], 7) == Symptom(
        "version_future", "policy version 8 does not exist yet; the newest is 7"
    )
    assert of_versions([0, 7], 7) is None
