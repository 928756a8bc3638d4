"""The page over all worlds: what is compared, and what it says."""

from pathlib import Path
from typing import Any

import pytest

from lab.real_model.worlds import WORLDS
from lab.results.statistics import Ratio
from lab.where_it_pays import rows, sentences
from lab.where_it_pays.rows import Comparison, Row, contrast_ratio
from lab.where_it_pays.sentences import Everything


@pytest.fixture(scope="module")
def everything() -> Everything:
    return Everything.read()


def test_the_contrast_ratio_is_that_of_groups_that_are_counted_one_by_one() -> None:
    assert contrast_ratio(0.02, 0.43) == pytest.approx(6.0, abs=0.3)
    assert contrast_ratio(0.0001, 0.43) > 500
    # four attempts and four retries of the failures, of which all or none succeed
    base, guided = 0.25, 0.5
    plain = 1 - base**8 - (1 - base) ** 8
    assert contrast_ratio(base, guided) == pytest.approx((1 - base**4 - (0.75 * 0.5) ** 4) / plain)


def line(variant: str, seed: int, *successes: float) -> dict[str, Any]:
    costs = [100.0 * (step + 1) for step in range(len(successes))]
    return {"kind": "run", "machine": "M", "world": "what", "variant": variant, "seed": seed,
            "policy": seed, "warm_steps": 200, "options": "{}",
            "evaluations": [[0, 0.01], [len(successes), 0.9]],
            "curve": {"tokens": costs, "cpu": costs, "success_base": [*successes]}}  # fmt: skip


def lines(seeds: int) -> list[dict[str, Any]]:
    probe = {"kind": "probe", "machine": "M", "world": "what", "warm_steps": 200, "options": "{}",
             "success": 0.005, "told": 0.95, "guided": 0.4, "restart": 0.01}  # fmt: skip
    made = [probe | {"seed": seed} for seed in range(seeds)]
    for seed in range(seeds):
        made += [line("r3l", seed, 0.0, 1.0), line("no_reflect", seed, 0.0, 0.0, 0.0, 2.0)]
    return made


def test_a_world_of_smollm2_is_a_row_with_its_probes_and_partners() -> None:
    [row] = rows.smollm2(lines(3), [])
    assert (row.model, row.world, row.base, row.counts) == ("SmolLM2", "workshop", 0.005, True)
    assert row.contrast == pytest.approx(contrast_ratio(0.005, 0.4))
    [found] = row.comparisons
    assert (found.partner, found.pairs, found.policies) == ("no_reflect", 3, 3)
    assert found.ratios["steps"].value == pytest.approx(0.5) and found.below_one("tokens")
    assert row.over("grpo") is None


def test_fewer_than_three_warm_policies_have_no_interval_and_are_not_sure() -> None:
    [row] = rows.smollm2(lines(2), [])
    [found] = row.comparisons
    assert not found.below_one("steps")
    assert "| 0.50 (0.50, 0.50) | 2, 2 |" in sentences.every_row([row])
    [three] = rows.smollm2(lines(3), [])
    assert "| 0.50 (0.50–0.50) |" in sentences.every_row([three])
    assert "workshop at 0.005 (SmolLM2)" in sentences.when([three])
    assert "reflection | 0.50 (0.50–0.50) |" in sentences.pretrained([three])


def test_a_bound_is_shown_with_its_sign_and_is_no_cost() -> None:
    bound = Comparison("grpo", {unit: Ratio(0.1, None, "<") for unit in ("steps", "tokens", "cpu")},
                       6, 2)  # fmt: skip
    row = Row("1 M parameters", "workshop, ρ 1", 0.0001, None, (bound,))
    assert "| < 0.10 | < 0.10 | < 0.10 | 6, 2 |" in sentences.every_row([row])
    assert sentences.cost_of([row]) == "(no runs)"
    assert sentences.pretrained([row]).startswith("No pretrained model has been run")


def test_every_world_has_a_name_and_none_a_contrast_ratio_where_failures_are_scored() -> None:
    assert rows.NAMES.keys() == WORLDS.keys()
    made = [line | {"world": "kitchen"} for line in lines(3)]
    [row] = rows.smollm2(made, [])
    assert row.world == "TextWorld" and row.contrast is None


def test_what_was_planned_and_not_run_is_named() -> None:
    none = Everything([], [], [], [], [])
    assert "- *what*: nothing was run.\n- *where*: nothing" in sentences.missing(none)
    lake = lines(1)[0] | {"world": "lake", "success": 0.06}
    found = sentences.missing(Everything([], [lake], [], [], []))
    assert "- *lake*: nothing was run, because no [probe]" in found
    some = sentences.missing(Everything([], lines(3), [], [], []))
    assert "- *what*, R³L: 2 of 3 warm policies." in some  # seed 0 is not of the plan
    assert "- *what*, GRPO without reference: 0 of 3" in some and "*lake*: nothing" in some
    assert "in the cells of the map: not run" in some


def test_a_world_in_which_no_run_reaches_half_is_told_by_its_difference(
    everything: Everything,
) -> None:
    text = sentences.unreached(everything)
    assert "| SmolLM2 | sums, 200 demonstrated reflections | held-out success |" in text
    assert "| 1 M parameters | ScienceWorld, 45 steps | score | GRPO |" in text


def test_page_and_pictures_are_those_of_the_lines(everything: Everything, tmp_path: Path) -> None:
    assert sentences.PAGE.read_text(encoding="utf-8") == sentences.render(everything)
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    sentences.draw(everything.rows, first, second)
    assert first.read_bytes() == sentences.FOREST.read_bytes()
    assert second.read_bytes() == sentences.CONTRAST.read_bytes()
