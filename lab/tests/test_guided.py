"""The table of the gate on a network: made-up lines, literal numbers."""

from typing import Any

from lab.results.guided import costs, over_the_better, retries


def line(variant: str, seed: int, steps: int, *, a_step: int = 10, gated: float = 0.0) -> Any:
    """A run that succeeds from its last step on."""
    curve = {
        "success_base": [0.0] * (steps - 1) + [5.0],  # the mean of five steps is 1
        "tokens": [a_step * (step + 1) for step in range(steps)],
        "gated": [gated] * steps,
    }
    named = {"experiment": "e12", "cell": "base-0.13-rho-1", "variant": variant, "seed": seed}
    return named | {"curve": curve}


def test_the_gate_is_measured_against_the_cheaper_arm_of_each_seed() -> None:
    with_retries = [line("useful", 0, 10), line("useful", 1, 40)]
    without = [line("no_retries", 0, 20), line("no_retries", 1, 20)]
    gated = [line("useful_gated", 0, 20), line("useful_gated", 1, 40)]
    assert f"{over_the_better(with_retries, without, gated).value:.3f}" == "2.000"
    row = costs([*with_retries, *without, *gated]).splitlines()[-1]
    assert row.startswith("| 0.13 | useful | 25, 250 | 20, 200 | 30, 300 | 2.00")
    assert row.endswith("| 1.00 | – | – | 2 |")
    alone = [line("useful_gated_only", 0, 12)]
    row = costs([*with_retries, *without, *gated, *alone]).splitlines()[-1]
    assert row.endswith("| 1.00 | – | 12, 120 | 2 |")
    alone += [line("useful_only", 0, 11)]
    row = costs([*with_retries, *without, *gated, *alone]).splitlines()[-1]
    assert row.endswith("| 1.00 | 11, 110 | 12, 120 | 2 |")


def test_an_arm_that_never_succeeds_is_not_the_better_one() -> None:
    never = line("harmful", 0, 5)
    never["curve"]["success_base"] = [0.0] * 5
    gated = [line("harmful_gated", 0, 24, gated=0.75)]
    found = over_the_better([never], [line("no_retries", 0, 20)], gated)
    assert (found.value, found.kind) == (1.2, "=")
    assert retries(gated[0]) == 0.25
    assert "> 5, > 50" in costs([never, line("no_retries", 0, 20), *gated])


def test_guidance_without_all_three_arms_is_left_out() -> None:
    assert costs([line("useful", 0, 10), line("no_retries", 0, 10)]) == "(no runs)"
