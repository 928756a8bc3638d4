"""What a run has used, its price and its budget."""

import pytest

from r3l.run import bill
from r3l.run.bill import Usage
from r3l.run.settings.costs import BudgetConfig, CostConfig

USED = Usage(sampled=1e6, read=2e6, trained=1e6, cpu_s=7200, gpu_s=3600, wall_s=1800)
PRICES = CostConfig(per_gpu_hour=2.5, per_cpu_hour=0.25, per_million_tokens=0.125)
FREE = CostConfig()


def test_the_processes_of_a_run_are_added_up() -> None:
    assert bill.total([USED, Usage(sampled=5, wall_s=200)]) == Usage(
        1e6 + 5, 2e6, 1e6, 7200, 3600, 2000
    )
    assert bill.total([]) == Usage() and USED.tokens == 4e6


def test_an_entry_never_shrinks() -> None:
    assert Usage(5, 1).at_least(Usage(3, 4)) == Usage(5, 4)


def test_the_amount_is_the_sum_of_all_that_has_a_price() -> None:
    assert bill.amount(USED, PRICES) == 4 * 0.125 + 2 * 0.25 + 1 * 2.5
    assert bill.amount(USED, FREE) == 0


@pytest.mark.parametrize(
    ("limit", "name"),
    [({"tokens": 4_000_000}, "tokens=4000000"), ({"hours": 0.5}, "hours=0.5"),
     ({"amount": 3.5}, "amount=3.5")],
)  # fmt: skip
def test_a_limit_is_used_up_when_it_is_reached(limit: dict[str, float], name: str) -> None:
    budget = BudgetConfig.model_validate(limit)
    said = bill.spent(USED, budget, PRICES)
    assert said.startswith(f"budget.{name} is used up (")
    assert bill.spent(Usage(), budget, PRICES) == ""


def test_what_to_type_for_more_names_only_the_limits_that_are_used_up() -> None:
    budget = BudgetConfig(tokens=1000, hours=9, amount=1)
    assert bill.larger(USED, budget, PRICES) == "budget.tokens=8000000 budget.amount=7"


def test_a_bill_has_an_amount_only_if_something_has_a_price() -> None:
    with_price, without = bill.metrics(USED, PRICES), bill.metrics(USED, FREE)
    assert with_price.pop("bill/amount") == 3.5 and with_price == without
    assert bill.line(USED, FREE) == (
        "1,000,000 tokens sampled, 2,000,000 read, 1,000,000 trained; 0.5 hours, 2 of CPU, 1 of GPU"
    )
    assert bill.line(USED, PRICES) == bill.line(USED, FREE) + "; amount 3.50"
    assert bill.short_line(bill.metrics(USED, PRICES)) == "used 4.00M tok amount 3.50"
    assert bill.short_line(without) == "used 4.00M tok" and bill.short_line({}) == ""
