"""Symptoms of sick engines, by literal values."""

import math

import numpy as np
import pytest

from r3l.rollout.engine_symptoms import of_logprobs, of_versions


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_a_log_probability_that_is_not_finite_is_a_symptom(strange: float) -> None:
    symptom = of_logprobs((-0.5, strange, -2.0))
    assert symptom is not None and symptom.cause == "logprobs_not_finite"
    assert symptom.message.startswith("1 of 3 ")


def test_a_log_probability_above_0_is_a_symptom_unless_it_is_rounding() -> None:
    symptom = of_logprobs(np.array([-1.0, 0.25], np.float32))
    assert symptom is not None and symptom.cause == "logprobs_positive"
    assert " 0.25, " in symptom.message
    assert of_logprobs((-1.0, 0.0, 1e-6)) is None
    assert of_logprobs((-3.4e38,)) is None
    assert of_logprobs(()) is None


def test_versions_below_0_and_of_the_future_are_symptoms() -> None:
    below, future = of_versions([3, -1], 7), of_versions([0, 8], 7)
    assert below is not None and below.cause == "version_negative"
    assert "version -1 " in below.message
    assert future is not None and future.cause == "version_future"
    assert "version 8 " in future.message and future.message.endswith(" 7")
    assert of_versions([0, 7], 7) is None
