"""The choice of a learning rate: made-up lines, literal names."""

from lab.results.rates import Choice, best_rate, missing_rates, over_tuned_grpo
from lab.results.statistics import Record
from lab.tests.test_findings import run

CELL = "base-0.13-rho-1"


def made(variant: str, choosing: int | None, reporting: int) -> list[Record]:
    """Six runs of a variant, of so many steps; three if `choosing` is None."""
    first = [] if choosing is None else [run(CELL, variant, choosing, seed=s) for s in range(3)]
    return [*first, *(run(CELL, variant, reporting, seed=s) for s in (3, 4, 5))]


def test_the_best_rate_is_chosen_by_seeds_that_do_not_report_it() -> None:
    runs = {"grpo": made("grpo", 40, 40), "grpo_lr_high": made("grpo_lr_high", 20, 30),
            "grpo_lr_4": made("grpo_lr_4", 25, 10), "grpo_equal": made("grpo_equal", 8, 8),
            "grpo_lr_low": [run(CELL, "grpo_lr_low", 9, seed=s) for s in range(3)]}  # fmt: skip
    assert best_rate(runs, "grpo", 0.5) == Choice("grpo_lr_high", apart=True)
    forgot = [one | {"success": 0.85} for one in made("grpo_lr_16", 2, 2)]
    assert best_rate(runs | {"grpo_lr_16": forgot}, "grpo", 0.5) == Choice("grpo_lr_high", True)
    runs["grpo_lr_8"] = made("grpo_lr_8", None, 15)
    assert best_rate(runs, "grpo", 0.5) == Choice("grpo_lr_4", apart=False)
    assert best_rate({"grpo": made("grpo", 40, 40)}, "grpo", 0.5) is None
    assert best_rate(runs, "r3l", 0.5) is None


def test_a_tuned_rate_is_reported_by_the_seeds_that_did_not_choose_it() -> None:
    records = [
        *made("grpo", 40, 40),
        *made("grpo_lr_high", 20, 30),
        *made("r3l", 20, 22),
        *made("r3l_lr_high", None, 16),
    ]
    common, best = over_tuned_grpo(records).splitlines()[2:4]
    assert common.split(" | ")[1:5] == [
        "0.5", "R³L", "GRPO, learning rate × 2", "0.71 (0.71, 0.71, 0.71)",
    ]  # fmt: skip
    assert best.split(" | ")[2:5] == [
        "R³L, learning rate × 2 ‡", "GRPO, learning rate × 2", "0.50 (0.50, 0.50, 0.50)",
    ]  # fmt: skip
    assert best.endswith("| 3, 1 |")


def test_rates_without_runs_are_named() -> None:
    said = missing_rates([*made("grpo_lr_high", 9, 9), *made("r3l_lr_4", None, 9)])
    none, some = said.split(". ")
    assert "GRPO, learning rate × 16" in none and "GRPO, learning rate × 2" not in none
    assert some == "Not run yet with all of the first 3 seeds: R³L, learning rate × 4."
