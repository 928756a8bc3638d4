"""The text of the appendix with every comparison, by the template page.md."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from lab.real_model import page as real_model
from lab.real_model import rare, rare_page
from lab.real_model.worlds import ARMS, CONTROLS, WORLDS, World
from lab.results import cells
from lab.results.__main__ import finished
from lab.results.experiments import ADVISED, AUXILIARY
from lab.results.experiments import runs as runs_of_plan
from lab.results.findings import WORTH, policies, select, table
from lab.results.lines import APPENDIX, LINES, PAGES, read_lines
from lab.results.statistics import UNITS, Record, pairs, t_interval
from lab.results.tables import LABELS
from lab.where_it_pays import pictures
from lab.where_it_pays.rows import FEWEST, PARTNERS, Comparison, Row, compared, smollm2, toy

PAGE = APPENDIX / "comparisons.md"
FOREST, CONTRAST = PAGES / "where-it-pays.svg", PAGES / "where-it-pays-contrast.svg"
TEMPLATE = Path(__file__).with_name("page.md")
SEEDS = len(rare.SEEDS)
RARE = 0.02
"""Success before training up to which it is called rare."""


@dataclass(frozen=True)
class Everything:
    """All lines that the page is made of, and the rows that they give."""

    records: Sequence[Record]
    rare: Sequence[dict[str, Any]]
    earlier: Sequence[dict[str, Any]]
    systems: Sequence[Record]
    rows: Sequence[Row]

    @classmethod
    def read(cls, lines: Path = LINES) -> "Everything":
        """Reads the lines of all experiments."""
        from lab.results import wall_clock

        records = finished(lines)
        warm = policies(read_lines(lines / "warm.jsonl", cells.setup_of))
        rarely = read_lines(lines / rare.FILE.name)
        earlier = read_lines(lines / real_model.FILE.name)
        systems = read_lines(lines / "e5.jsonl", wall_clock.setup_of)
        rows = [*smollm2(rarely, earlier), *toy(records, warm)]
        return cls(records, rarely, earlier, systems, rows)


def render(read: Everything) -> str:
    """The text of the page."""
    values = {
        "when": when(read.rows),
        "by_base": by_base(read.rows),
        "rows": every_row(read.rows),
        "variants": variants(read),
        "unreached": unreached(read),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"<!-- {name} -->", value)
    return text


def when(rows: Sequence[Row]) -> str:
    """Where R³L costs less than a partner for sure, by unit."""
    lines = []
    for partner, name in PARTNERS.items():
        known = [(row, found) for row in rows if (found := row.over(partner)) is not None]
        sure = [(row, found) for row, found in known if found.policies >= FEWEST]
        said = []
        for unit, title in UNITS.items():
            below = [_called(row) for row, found in sure if found.below_one(unit)]
            said.append(f"{title}: {', '.join(below) or 'none'}")
        lines.append(
            f"- Over {name} ({len(known)} worlds, {len(sure)} with {FEWEST} policies or more). "
            f"{'; '.join(said)}."
        )
    return "\n".join(lines)


def pretrained(rows: Sequence[Row]) -> str:
    """What R³L took over each partner with SmolLM2 where success was rare before training."""
    found = []
    for row in (row for row in rows if row.model == "SmolLM2" and row.base <= RARE):
        for partner, name in PARTNERS.items():
            if (each := row.over(partner)) is not None:
                costs = [rare_page.shown_ratio(each.ratios[unit], each.policies) for unit in UNITS]
                found.append([row.world, f"{row.base:.2g}", name, *costs, str(each.policies)])
    if not found:
        return "No pretrained model has been run where success is rare."
    head = ["world", "success before", "R³L over", *UNITS.values(), "warm policies"]
    return (
        "SmolLM2 is the only pretrained model that was run where success is rare. This is its cost "
        f"with R³L to reach a success rate of {WORTH[0]:g}, divided by its cost with each partner. "
        "`<` is a bound, because some runs of the partner did not get there:\n\n"
        f"{table(head, found)}"
    )


def by_base(rows: Sequence[Row]) -> str:
    """The steps, tokens and CPU seconds over each partner where the remark names the answer, by the
    success before training: the means of the worlds of each base success and model."""
    found = []
    for model, base in dict.fromkeys((row.model, _coarse(row.base)) for row in rows):
        same = [r for r in rows if (r.model, _coarse(r.base)) == (model, base) and _told(r)]
        for partner, name in PARTNERS.items():
            known = [each for row in same if (each := row.over(partner)) is not None]
            if known:
                costs = [_range(known, unit) for unit in UNITS]
                contrasts = [row.contrast for row in same if row.contrast is not None]
                contrast = f"{fmean(contrasts):.1f}" if contrasts else "–"
                found.append([model, f"{base:g}", contrast, name, *costs])
    head = ["model", "success before", "contrast ratio", "R³L over", *UNITS.values()]
    return table(head, found)


def _coarse(base: float) -> float:
    return float(f"{base:.1g}") if base < 0.1 else round(base, 2)


def _told(row: Row) -> bool:
    return "remark" not in row.world and "long" not in row.world


def _range(known: Sequence[Comparison], unit: str) -> str:
    """The lowest and the highest ratio of some worlds, bounds with their sign."""
    found = [each.ratios[unit] for each in known if unit in each.ratios]
    found = sorted((each for each in found if each.kind != "?"), key=lambda each: each.value)
    if not found:
        return "–"
    ends = [f"{'' if each.kind == '=' else f'{each.kind} '}{each.rounded:.2f}" for each in found]
    return ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"


def cost_of(rows: Sequence[Row]) -> str:
    """A table of what R³L costs to the same success over each partner: the lowest and the highest
    ratio of the worlds in which both sides got there."""
    units, found = ("tokens", "cpu"), []
    for partner, name in PARTNERS.items():
        known = [each for row in rows if (each := row.over(partner)) is not None]
        reached = [[each.ratios[unit] for each in known if unit in each.ratios] for unit in units]
        values = [[ratio.value for ratio in ratios if ratio.kind == "="] for ratios in reached]
        if any(values):
            found.append([name, *(f"{min(v):.2f} to {max(v):.2f}" if v else "–" for v in values)])
    return table(["R³L over", *(UNITS[unit] for unit in units)], found)


def missing(read: Everything) -> str:
    """Which of SmolLM2's runs of the plan have no line."""
    made = {
        (line["world"], line["variant"], line["seed"])
        for line in read.rare
        if line["kind"] == "run"
    }
    lines = []
    for world in WORLDS.values():
        counts = {
            name: sum((world.name, name, seed) in made for seed in rare.SEEDS)
            for name in (*world.variants, *world.controls)
        }
        if not any(counts.values()):
            lines.append(f"- *{world.name}*: {_why_none(world, read.rare)}")
            continue
        lines += [
            f"- *{world.name}*, {rare_page.NAMES[name]}: {count} of {SEEDS} warm policies."
            for name, count in counts.items()
            if count < SEEDS
        ]
    planned = len([*runs_of_plan(("e13",))])
    advised = [run for run in read.records if run["experiment"] == "e13"]
    if len(advised) < planned:
        made_of = f"{len(advised)} of {planned} runs" if advised else "not run"
        lines.append(f"- Other uses of advice, and controls, in the cells of the map: {made_of}.")
    return "\n".join(lines)


def _why_none(world: World, lines: Sequence[dict[str, Any]]) -> str:
    probes = [line for line in lines if (line["kind"], line["world"]) == ("probe", world.name)]
    if probes and not any(map(world.counts, probes)):
        return "nothing was run, because no [probe](appendix/rare.md#probes) counts."
    return "nothing was run."


def every_row(rows: Sequence[Row]) -> str:
    """Every comparison of the forest plot."""
    found = []
    for row in rows:
        contrast = "–" if row.contrast is None else f"{row.contrast:.1f}"
        for each in row.comparisons:
            costs = [
                rare_page.shown_ratio(each.ratios[unit], each.policies)
                if unit in each.ratios
                else "–"
                for unit in UNITS
            ]
            mark = "" if row.counts else " †"
            counts = f"{each.pairs}, {each.policies}"
            found.append([row.model, row.world, f"{row.base:.2g}{mark}", contrast,
                          PARTNERS[each.partner], *costs, counts])  # fmt: skip
    head = ["model", "world", "success before", "contrast ratio", "R³L over", *UNITS.values()]
    return table([*head, "pairs, policies"], found)


def variants(read: Everything) -> str:
    """Costs of other variants over R³L without reflection, in cells and with SmolLM2."""
    rows = []
    for model, world, name, each in _variants(read):
        costs = [rare_page.shown_ratio(each.ratios[unit], each.policies) for unit in UNITS]
        rows.append([model, world, name, *costs, f"{each.pairs}, {each.policies}"])
    return table(["model", "world", "variant", *UNITS.values(), "pairs, policies"], rows)


def _variants(read: Everything) -> Iterator[tuple[str, str, str, Comparison]]:
    partner = "no_reflect"
    toys = dict.fromkeys(run["cell"] for run in read.records if run["experiment"] == "e13")
    for cell in toys:
        theirs = select(read.records, "e13", cell, partner)
        for name in (*ADVISED, *AUXILIARY):
            found = compared(partner, select(read.records, "e13", cell, name), theirs)
            if found is not None:
                yield "1 M parameters", cell, LABELS[name], found
    for world in WORLDS.values():
        runs = [line for line in read.rare if (line["kind"], line["world"]) == ("run", world.name)]
        theirs = [run for run in runs if run["variant"] == partner]
        for name in (*ARMS, *CONTROLS):
            mine = [run for run in runs if run["variant"] == name]
            found = compared(partner, mine, theirs)
            if found is not None and name not in ("r3l", partner, "grpo", *rare_page.WITHOUT_COST):
                yield "SmolLM2", world.name, rare_page.NAMES[name], found


def unreached(read: Everything) -> str:
    """Worlds in which runs do not reach a success of 0.5: by how much R³L is better than a partner
    at equal steps."""
    rows = []
    train = [x for x in read.earlier if x["kind"] == "train"]
    for dose in sorted({line["dose"] for line in train}):
        for partner, variant in (("no_reflect", "no_reflect"), ("grpo_no_kl", "grpo")):
            runs = [line for line in train if line["dose"] == dose]
            found = _apart(runs, variant, _apart_after, real_model.policy_of)
            world = f"sums, {dose:,} demonstrated reflections"
            rows.append(["SmolLM2", world, "held-out success", PARTNERS[partner], *found])
    for cell, steps in (("scienceworld", 15), ("scienceworld-long", 45)):
        ended = [line for line in read.systems if line["cell"] == cell]
        found = _apart(ended, "grpo", lambda a, b: float(a["reward"] - b["reward"]), lambda _: 0)
        rows.append(["1 M parameters", f"ScienceWorld, {steps} steps", "score", "GRPO", *found])
    head = ["model", "world", "measure", "R³L less", "difference", "pairs, policies"]
    return table(head, [row for row in rows if row[-1]])


def _apart_after(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The difference of two runs in the mean held-out success after the start, over the
    evaluations that both have."""
    shared = min(len(one["evaluations"]), len(other["evaluations"]))
    first, second = (
        real_model.after_start(run | {"evaluations": run["evaluations"][:shared]})
        for run in (one, other)
    )
    return first - second


def _apart(
    runs: Sequence[Any],
    partner: str,
    difference: Callable[[Any, Any], float],
    policy: Callable[[Any], Any],
) -> list[str]:
    """The mean difference of R³L's runs to a partner's over warm policies, and their numbers; "" if
    there is no pair."""
    mine, theirs = ([run for run in runs if run["variant"] == name] for name in ("r3l", partner))
    by_policy: dict[Any, list[float]] = {}
    for one, other in pairs(mine, theirs):
        by_policy.setdefault(policy(one), []).append(difference(one, other))
    if not by_policy:
        return ["", ""]
    middle, half = t_interval(np.array([fmean(values) for values in by_policy.values()]))
    count = sum(map(len, by_policy.values()))
    sure = half is not None and len(by_policy) >= FEWEST
    shown = f"{middle:+.3f}" + (f" ± {half:.3f}" if sure else "")
    return [shown, f"{count}, {len(by_policy)}"]


def _called(row: Row) -> str:
    return f"{row.world} at {row.base:.2g} ({row.model})"


def write(read: Everything) -> None:
    """Write the page and its pictures."""
    PAGE.write_text(render(read), encoding="utf-8")
    draw(read.rows, FOREST, CONTRAST)


def draw(rows: Sequence[Row], first: Path, second: Path) -> None:
    """Draw both pictures."""
    pictures.forest(rows, first)
    pictures.contrast(rows, second)
