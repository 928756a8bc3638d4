"""From the lines of rare.jsonl to the appendix where success is rare, by the template rare.md."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from lab.real_model.finals import SHARES, WARM
from lab.real_model.page import TITLES, machine
from lab.real_model.rare import FILE
from lab.real_model.worlds import WORLDS, World
from lab.results.findings import FEWEST, shown, table
from lab.results.lines import APPENDIX, read_lines
from lab.results.statistics import UNITS, Ratio, cost, pairs, ratio, t_interval

PAGE = APPENDIX / "rare.md"
TEMPLATE = Path(__file__).with_name("rare.md")
WORTH = 0.5
PARTNERS = ("no_reflect", "grpo")
"""Arms over which the costs of the others are shown."""
WITHOUT_COST = ("supervised",)
"""Arms whose first attempts are not the policy's: what they cost says nothing."""
KEPT = {"success": "success", "greedy": "greedy", "pass": "Pass@8"}
"""What a final line holds of the world of its run."""
NAMES = {WARM: "warm policy, untrained", **TITLES}
Lines = Sequence[dict[str, Any]]
Variants = Callable[[World], Sequence[str]]


def render(lines: Lines) -> str:
    """The text of the page."""
    text = TEMPLATE.read_text(encoding="utf-8")
    kinds = {
        kind: [line for line in lines if line["kind"] == kind] for kind in ("probe", "run", "final")
    }
    made, last = kinds["run"], kinds["final"]
    values = {
        "probes": probes(kinds["probe"]),
        "runs": runs(made, _arms),
        "ratios": ratios(made, _arms),
        "controls": runs(made, _controls),
        "control_ratios": ratios(made, _controls),
        "finals": shares(last, list(KEPT.values()), lambda line: [line[name] for name in KEPT]),
        "final_differences": differences(last),
        "changed": shares(
            [line for line in last if "changed" in line],
            SHARES,
            lambda line: [line["changed"][name] for name in SHARES],
        ),
    }
    for name, value in values.items():
        text = text.replace(f"<!-- {name} -->", value)
    return text


def _arms(world: World) -> Sequence[str]:
    return world.variants


def _controls(world: World) -> Sequence[str]:
    return world.controls


def _all(world: World) -> Sequence[str]:
    return (WARM, *world.variants, *world.controls)


def probes(lines: Lines) -> str:
    """What was measured of each warm policy, and whether it counts."""
    shares = ("success", "told", "guided", "restart", "parsed")
    rows = [
        [
            line["world"],
            machine(line),
            str(line["seed"]),
            str(line["warm_steps"]),
            line["options"].strip("{}").replace('"', "") or "–",
            *(f"{line[name]:.3f}" if name in line else "–" for name in shares),
            "yes" if WORLDS[line["world"]].counts(line) else "no",
        ]
        for line in sorted(lines, key=lambda line: (line["world"], line["seed"]))
    ]
    head = ["world", "machine", "seed", "warm-up", "options", *shares, "counts"]
    return table(head, rows)


def runs(lines: Lines, variants: Variants) -> str:
    """What each arm reached, and what it took to a success of WORTH in the runs that got there."""
    rows = []
    for world, variant, made in _by_arm(lines, variants):
        costs = variant not in WITHOUT_COST
        spent = [_spent(made, unit) if costs else "–" for unit in UNITS]
        before, last = (
            f"{fmean(run['evaluations'][place][1] for run in made):.3f}" for place in (0, -1)
        )
        rows.append([world, NAMES[variant], before, last, *spent, _seeds(made)])
    units = [f"{unit} to {WORTH:g}" for unit in UNITS.values()]
    return table(["world", "arm", "before", "last", *units, "seeds"], rows)


def ratios(lines: Lines, variants: Variants) -> str:
    """The costs of each arm over those of the arms of PARTNERS with the same warm policy."""
    made = {(world, variant): some for world, variant, some in _by_arm(lines, _all)}
    rows = []
    for (world, variant), mine in made.items():
        shown_arms = set(variants(WORLDS[world])).difference(WITHOUT_COST)
        for partner in PARTNERS:
            theirs = made.get((world, partner), [])
            if variant in shown_arms and partner != variant and pairs(mine, theirs):
                costs = [ratio(mine, theirs, WORTH, unit) for unit in UNITS]
                count = len(pairs(mine, theirs))
                said = [shown_ratio(one, count) for one in costs]
                rows.append([world, NAMES[variant], NAMES[partner], *said, str(count)])
    return table(["world", "arm", "over", *UNITS.values(), "pairs"], rows)


def shown_ratio(found: Ratio, policies: int) -> str:
    """A ratio, with its interval if it is over FEWEST warm policies or more, else with what each
    policy or seed has."""
    return shown(replace(found, policies=policies))


def shares(lines: Lines, head: Sequence[str], values: Callable[[Any], Sequence[float]]) -> str:
    """Means over the seeds of the `values` of each policy's line."""
    rows = []
    for world, variant, made in _by_arm(lines, _all):
        columns = zip(*map(values, made), strict=True)
        rows.append([world, NAMES[variant], *map(_mean, columns), _seeds(made)])
    return table(["world", "policy", *head, "seeds"], rows)


def differences(lines: Lines) -> str:
    """What each ended policy has more than those of PARTNERS from the same warm policy."""
    made = {(world, variant): some for world, variant, some in _by_arm(lines, _all)}
    rows = []
    for (world, variant), mine in made.items():
        for partner in PARTNERS:
            found = pairs(mine, made.get((world, partner), []))
            if variant in (WARM, partner) or not found:
                continue
            apart = [_mean([a[name] - b[name] for a, b in found], "+") for name in KEPT]
            rows.append([world, NAMES[variant], NAMES[partner], *apart, str(len(found))])
    return table(["world", "policy", "less", *KEPT.values(), "pairs"], rows)


def _mean(values: Iterable[float], sign: str = "") -> str:
    """The mean and, over FEWEST warm policies or more, half its 95 % t-interval."""
    found = np.array(list(values))
    middle, half = t_interval(found)
    shown = f"{middle:{sign}.3f}"
    return shown if half is None or len(found) < FEWEST else f"{shown} ± {half:.3f}"


def _by_arm(lines: Lines, variants: Variants) -> list[tuple[str, str, Lines]]:
    found: list[tuple[str, str, Lines]] = []
    for world in WORLDS.values():
        for variant in variants(world):
            named = {"world": world.name, "variant": variant}
            made = [line for line in lines if line.items() >= named.items()]
            if made:
                found.append((world.name, variant, sorted(made, key=lambda run: run["seed"])))
    return found


def _seeds(made: Lines) -> str:
    return ", ".join(str(line["seed"]) for line in made)


def _spent(made: Lines, unit: str) -> str:
    costs = [cost(run, WORTH, unit) for run in made]
    reached = [one.amount for one in costs if one.reached]
    some = f" ({len(reached)} of {len(costs)})" if len(reached) < len(costs) else ""
    return f"{fmean(reached):,.0f}{some}" if reached else "–"


def write() -> None:
    """Write the page from the lines."""
    PAGE.write_text(render(read_lines(FILE)), encoding="utf-8")
