"""The table of the long row: made-up lines, literal numbers."""

from typing import Any

from lab.results.experiments import LONG_ROW_VARIANTS, runs
from lab.results.long_row import ablations, state


def line(variant: str, seed: int, first: float, held_out: float) -> dict[str, Any]:
    """A run whose first attempts succeed so often in each of its last five steps."""
    curve = {"success_base": [0.0, *[first] * 5]}
    named = {"experiment": "e10", "cell": "long-row", "variant": variant, "seed": seed}
    return named | {"success": held_out, "curve": curve}


def test_the_long_row_has_its_ablations_with_six_seeds() -> None:
    mine = [run for run in runs(("e10",)) if run.cell.name == "long-row"]
    assert {run.seed for run in mine} == set(range(6))
    assert {run.variant for run in mine} == set(LONG_ROW_VARIANTS)
    assert {"r3l", "no_credit", "no_amplify", "r3l_std", "sft_none"} <= set(LONG_ROW_VARIANTS)
    sigma = next(run for run in mine if run.variant == "r3l_std")
    assert "algorithm.std=population" in sigma.settings()


def test_without_runs_the_page_says_that_nothing_is_known() -> None:
    assert "No run of the long row" in state([]) and ablations([]) == "(no runs)"


def test_a_variant_is_below_r3l_by_the_mean_of_the_seeds_that_both_have() -> None:
    records = [
        line("r3l", 0, 0.50, 0.6),
        line("r3l", 1, 0.70, 0.8),
        line("r3l", 2, 0.00, 0.0),  # its twin is missing
        line("no_credit", 0, 0.40, 0.6),
        line("no_credit", 1, 0.50, 0.6),
        line("r3l_std", 1, 0.80, 0.9),
    ]
    assert state(records) == "6 of 36 runs were made."
    rows = {row.split(" | ")[0]: row.split(" | ")[1:] for row in ablations(records).splitlines()}
    assert rows["| R³L"] == ["0.400", "–", "–", "0.467", "–", "3 |"]
    first = "+0.150 (+0.100, +0.200)"
    assert rows["| w/o credit"][:3] == ["0.450", "0.05", first]
    assert rows["| w/o credit"][4] == "+0.100 (+0.000, +0.200)"
    assert rows["| R³L, divided by σ"][1:3] == ["nothing", "-0.100 (-0.100)"]
