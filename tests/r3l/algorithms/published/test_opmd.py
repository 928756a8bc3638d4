"""OPMD: a policy gradient divided by 1 + τ."""

import pytest

from r3l.algorithms import losses
from tests.r3l.algorithms.fakes import get, loss_of, total


def test_the_gradient_is_divided_by_one_more_than_tau(batch):
    value, _ = loss_of(get("opmd", tau=3.0), batch)
    assert value.item() == pytest.approx(total(batch, losses.policy_gradient) / 4)
