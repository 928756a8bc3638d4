"""Ratios by name, in the sentences of the pages."""

from lab.results.costs import Costs, plain
from lab.results.findings import shown
from lab.results.statistics import Ratio


def made(experiment: str, variant: str, seed: int, steps: int) -> dict[str, object]:
    curve = {"tokens": [1] * steps, "success_base": [0.0] * (steps - 1) + [9.0]}
    named = {"experiment": experiment, "cell": "c", "variant": variant, "seed": seed}
    return named | {"curve": curve}


def test_a_cost_is_found_by_name_with_r3l_of_the_map_where_an_experiment_has_none() -> None:
    lines = [made("e1", "r3l", 0, 10), made("e1", "r3l", 1, 99), made("e2", "sft_none", 0, 20)]
    assert Costs(lines, shown)["e2 c sft_none/r3l steps"] == "2.00 (one seed)"
    assert Costs(lines, plain)["e2 c sft_none/r3l steps"] == "2.00"
    assert Costs(lines, plain)["e2 c restart/r3l steps"] == "–"


def test_a_bound_is_said_in_words() -> None:
    assert plain(Ratio(0.114, None, "<")) == "less than 0.12"
