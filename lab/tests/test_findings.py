"""Sentences of the results page: made-up lines, literal counts."""

import pytest

from lab.results import findings
from lab.results.cells import CELLS
from lab.results.experiments import VARIANTS
from lab.results.findings import (
    Numbers,
    against,
    cell_of,
    claim_in_words,
    crossing,
    not_trained,
    numbers,
    offline_gaps,
    other_rates,
    over,
    policies,
    summaries,
    told_less,
)
from lab.results.statistics import Record
from r3l.algorithms.registry import REGISTRY


def run(
    cell: str, variant: str, steps: int, success: float = 1.0, tokens: int = 10, seed: int = 0
) -> Record:
    """A run of E1 that reaches everything after `steps` steps of `tokens` tokens."""
    shares = [0.0] * (steps - 5) + [1.0] * 5
    spent = [tokens * (step + 1) for step in range(steps)]
    curve = {"tokens": spent, "cpu": spent, "success_base": shares}
    named = {"experiment": "e1", "cell": cell, "variant": variant, "seed": seed}
    return named | {"success": success, "curve": curve}


def seeds(
    base: float, rho: float, steps: int, success: float = 1.0, count: int = 2
) -> list[Record]:
    """R³L in `steps` steps, GRPO in 40."""
    cell = cell_of(base, rho).name
    ours = [run(cell, "r3l", steps, success, seed=seed) for seed in range(count)]
    return [*ours, *(run(cell, "grpo", 40, seed=seed) for seed in range(count))]


def test_the_claim_is_summed_up_for_cells_that_count_and_for_those_that_got_there() -> None:
    records = [
        *seeds(0.005, 1.0, 20),  # counts, holds
        *seeds(0.005, 2.4, 80),  # counts, does not hold
        *seeds(0.005, 0.3, 20),  # told too low, but got there
        *seeds(0.002, 1.0, 20, success=0.85),  # told too low, did not get there
        *seeds(0.002, 2.4, 20, count=1),
        *seeds(0.13, 1.0, 20),  # not of the claim
    ]
    warm = {name: {"told": 0.95} for name in CELLS}
    warm[cell_of(0.005, 0.3).name] = {"told": 0.85}
    del warm[cell_of(0.002, 1.0).name]
    first, second = claim_in_words(records, warm).split("\n\n")
    assert "seeds of both algorithms): 2 of 9. The whole claim holds in 1 of them" in first
    assert "0.005 at ρ 0.3 (told 0.850); 0.002 at ρ 2.4 (seeds: 1 of R³L and 1 of GRPO)" in first
    assert "0.002 at ρ 1 (told unknown)" in first
    assert "in 3 of 9 cells" in second and "the claim holds in 2 of these cells" in second


def test_a_cell_with_several_warm_policies_has_their_mean() -> None:
    first, second = ({"cell": "a", "told": told, "guided": 0.5} for told in (0.85, 0.95))
    other = {"cell": "b", "told": 0.9, "guided": None}
    found = policies([first, second | {"reward": 0.1}, other])
    assert found["a"] == {"told": pytest.approx(0.9), "guided": 0.5, "policies": 2,
                          "lowest told": 0.85}  # fmt: skip
    assert found["b"] == {"told": 0.9, "policies": 1, "lowest told": 0.9}


def test_cells_whose_policy_is_told_too_little_are_listed() -> None:
    warm = {"a": {"told": 0.85}, "b": {"told": 0.9}, "c": {"told": 0.245}}
    assert told_less(warm, ["b", "a", "c", "d"]) == "a (0.850), c (0.245)"
    assert told_less(warm, ["b"]) == "none"


def test_a_policy_that_was_warmed_for_another_experiment_is_not_of_the_map() -> None:
    lines = [{"cell": "a", "told": 0.95}, {"cell": "a", "told": 0.5, "experiment": "e11"}]
    assert policies(lines)["a"]["told"] == 0.95
    assert policies(lines, "e11")["a"]["told"] == 0.5


@pytest.mark.parametrize(
    ("ratios", "found"),
    [
        ((1.2, 1.1, 0.9), "between 0.02 and 0.005"),
        ((0.9, 0.8, 0.7), "above 0.13"),
        ((1.3, 1.2, 1.0), "below 0.005"),
        ((1.1, 0.9, 1.1), "more than once"),
        ((0.9, 1.1, 1.2), "more than once"),
    ],
)
def test_tokens_cross_between_the_worlds_whose_ratios_are_on_both_sides_of_1(
    ratios: tuple[float, ...], found: str
) -> None:
    assert crossing(list(zip((0.13, 0.02, 0.005), ratios, strict=True))) == found


def test_a_number_without_lines_is_a_dash() -> None:
    assert f"{Numbers()['e0 nothing success']}" == "–"
    records = [run("base-0.13-rho-1", "r3l", 10), *[run("base-0.13-rho-1", "grpo", 20)] * 2]
    found = numbers(records, [], [])
    assert found["e1 base-0.13-rho-1 r3l steps"] == "0.44 (one seed)"  # 8 / 18 steps
    assert found["e2 base-0.13-rho-1 sft_none steps"] == "–" and "e5 gain" not in found


def test_costs_of_a_quarter_of_the_samples_are_means_over_cells() -> None:
    costs = {"sft_quarter": (18, 28), "sft_none": (10, 28), "r3l": (18, 10)}
    records = [
        run(cell, variant, steps) | {"experiment": "e11"}
        for variant, both in costs.items()
        for cell, steps in zip(("base-0.13-rho-1", "base-0.02-rho-1"), both, strict=True)
    ]
    found = numbers(records, [], [])
    # two steps less until the mean of five is 0.5: √(16/8 · 26/26), √(16/16 · 26/8)
    assert found["e11 sft_quarter over sft_none steps"].startswith("1.41 (")
    assert found["e11 sft_quarter over r3l steps"].startswith("1.80 (")
    assert found["e2 sft_quarter over r3l steps"] == "–"


def test_algorithms_without_a_run_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [run("c", variant, 9) for variant in ("r3l", "grpo", "flat_replaced", "r3", "arpo")]
    missing = not_trained(records)
    assert "`gspo`" in missing and "`critique_grpo`" in missing
    assert not any(f"`{name}`" in missing for name in ("dapo", "r3l", "grpo"))
    records = [run("c", variant, 9) for variant in VARIANTS]
    missing = not_trained(records)
    inside = "`exit`, `forward_kl`, `hill`, `pope`, `prefix_rl`, `restart_from_success`"
    assert missing.startswith(f"no run on this page trains `early_experience`, {inside}, `rlvmr`.")
    for name in missing.split("`")[1::2]:
        monkeypatch.delitem(REGISTRY, name)
    assert not_trained(records).startswith("every algorithm that can be chosen is trained")


def test_what_offline_runs_lack_is_said() -> None:
    variants = {"r3l": ("R³L", ()), "grpo": ("GRPO", ()), "raft": ("RAFT", ())}
    lines = [{"variant": variant} for variant in ("r3l", "r3l", "grpo")]
    assert offline_gaps(lines, variants) == "Not run: RAFT. One seed, so no interval: GRPO."
    assert offline_gaps([*lines, *lines, *[{"variant": "raft"}] * 2], variants) == ""


def test_runs_of_different_machines_are_not_compared() -> None:
    here = [run("c", "r3l", 10, seed=0) | {"machine": "a"}]
    there = [run("c", "grpo", 10, seed=0) | {"machine": "b"}]
    assert over(here, there, 0.5, "steps") == over(here, [], 0.5, "steps") == "–"
    assert over(here, [*there, *here], 0.5, "cpu") == "1.00 (one seed)"


def test_other_learning_rates_are_promised_only_if_there_are_runs() -> None:
    assert "no run with another one" in other_rates([run("c", "grpo", 9)])
    assert "variants.md" in other_rates([run("c", "grpo_lr_low", 9)])


def test_the_first_prediction_has_a_world_for_each_of_the_map() -> None:
    assert len(findings.FIRST) == len(findings.BASES)
    assert [ratio for _, ratio in findings.FIRST] == [1.00, 0.79, 0.76, 0.45, 0.40]


def test_a_lever_is_beside_the_default_and_grpo_with_the_seeds_that_it_has() -> None:
    cell = "base-0.13-rho-1"
    lever = run(cell, "sft_none", 30, seed=1) | {"experiment": "e2"}
    grpo = [run(cell, "grpo", 40, seed=seed) for seed in range(2)]
    default = [run(cell, "r3l", steps, seed=seed) for seed, steps in enumerate((10, 20))]
    records = [lever, *grpo, *default]
    assert against(records, "e2", cell, "sft_none") == ([lever], grpo)
    assert against(records, "e2", cell, "r3l") == ([default[1]], grpo)
    assert against(records, "e1", cell, "r3l") == (default, grpo)
    other = run(cell, "r3l", 30, seed=1) | {"policy": 2}
    assert against([*records, other], "e2", cell, "r3l") == ([default[1]], grpo)
    own = run(cell, "grpo", 50) | {"experiment": "e2"}
    assert against([*records, own], "e2", cell, "sft_none") == ([lever], [own])


def test_brief_summaries_are_beside_full_ones_of_the_same_kind_of_processor() -> None:
    full, brief = "base-0.02-rho-2.4", "base-0.02-rho-2.4-brief"
    here, there = {"machine": "one"}, {"machine": "another"}
    records = [
        *(run(brief, "r3l", 12, seed=seed) | {"experiment": "e2"} | here for seed in (0, 1)),
        *(run(full, "r3l", 16, seed=seed) | here for seed in (3, 4)),
        *(run(full, "r3l", 50, seed=seed) | there for seed in (0, 1)),
        run(brief, "grpo", 30) | {"experiment": "e2"} | there,
    ]
    warm = {
        full: {"reflection_cost": 2.6, "told": 0.95},
        brief: {"reflection_cost": 2.1, "told": 0.91},
    }

    title = "0.02, ρ 2.4"

    def row() -> list[str]:
        return next(r for r in summaries(records, warm).splitlines() if title in r).split(" | ")

    assert row()[0] == f"| {title}" and row()[1:3] == ["2.6", "2.1"]
    ours, failures, steps, grpo = row()[3:]
    assert ours == steps == "0.71"  # half of a window succeeds after 10 and 14 steps
    assert failures == "–" and grpo == "– |"
    warm[brief]["told"] = 0.89
    assert row()[0] == f"| {title} †"
