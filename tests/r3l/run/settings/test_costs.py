"""Prices and budgets."""

import pytest

from r3l.errors import UserError
from r3l.run.config import load
from r3l.run.settings.costs import CostConfig


@pytest.mark.parametrize("price", ["per_gpu_hour", "per_cpu_hour", "per_million_tokens"])
def test_one_price_is_enough_for_a_budget_of_money(price: str) -> None:
    assert not CostConfig().priced
    config = load(None, [f"cost.{price}=0.5", "budget.amount=2"])
    assert config.cost.priced and config.budget.amount == 2


def test_a_budget_of_money_without_a_price_is_refused() -> None:
    with pytest.raises(UserError, match=r"budget\.amount 2: every price is 0.*cost\.per_gpu_hour"):
        load(None, ["budget.amount=2"])


@pytest.mark.parametrize("limit", ["tokens", "hours", "amount"])
def test_a_budget_of_nothing_is_refused(limit: str) -> None:
    with pytest.raises(UserError, match=rf"budget\.{limit}: must be more than 0, not 0"):
        load(None, [f"budget.{limit}=0", "cost.per_cpu_hour=1"])
