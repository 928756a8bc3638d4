"""The cells of the regime map: worlds of the workshop, each with a warm policy of its own."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from envs.registry import all_options
from lab.dry_run import show_learner
from lab.idealised import WORLDS, World
from lab.quality import keep_quality, measure
from lab.results.lines import digest
from lab.warmed import warmed_for
from learner.warmup.recipe import RECORD, Recipe
from r3l.errors import UserError

START_POLICY = Path(__file__).parent / "policy"
"""The policy that the warm-up of every cell continues from."""
MEASURED = 200  # held-out tasks that show the quality of a warm policy
SPECIAL = {"where": "remark says where", "none": "no remark", "brief": "brief summaries"}
TOLD = 0.9  # a cell counts if its policy succeeds as often once the hidden rules are told


@dataclass(frozen=True)
class Cell:
    """One world and how its policy is warmed.

    `options`: of the environment; `withheld`: rules that the warm-up does not teach, None for
    START_POLICY itself; `warm_steps`: of the warm-up; `waste`: share of the demonstrator's actions
    that do nothing; `certainty`: probability of a step at which it knows a withheld rule. `base`
    and `rho`: the base success, and the cost of a reflection in attempts, that the cell stands for.
    `equal`: group size at which a step of GRPO samples as many tokens as one of R³L. `steps`: limit
    of optimizer steps. `world`: its idealisation, if any. `number`: of its warm policy, which is
    the seed of its warm-up.
    """

    name: str
    base: float
    rho: float
    options: Mapping[str, int | str] = field(default_factory=dict)
    withheld: int | None = None
    warm_steps: int = 700
    waste: float = Recipe.waste
    certainty: float = Recipe.certainty
    equal: int = 16
    steps: int = 60
    world: World | None = None
    number: int = 0

    @property
    def title(self) -> str:
        """What a table calls it: its base success and ρ, and what else is special."""
        named = re.fullmatch(r"base-([\d.]+)-rho-([\d.]+)-?(\w*)", self.name)
        if named is None:
            return self.name.replace("-", " ")
        base, rho, more = named.groups()
        return f"{base}, ρ {rho}" + (f", {SPECIAL[more]}" if more else "")

    @property
    def folder(self) -> str:
        """The name of the folder of its policy."""
        return f"{self.name}-policy-{self.number}" if self.number else self.name

    def overrides(self) -> tuple[str, ...]:
        """The settings of a run in this cell."""
        return tuple(f"env.options.{name}={value}" for name, value in self.options.items())

    def warmup(self, out: Path) -> list[str]:
        """The command that warms its policy: it continues from START_POLICY, which can already
        read and reflect."""
        dials = [part for k, v in self.options.items() for part in ("--set", f"{k}={v}")]
        return ["warmup", "--env", "workshop", *dials, "--withheld", str(self.withheld),
                "--model", str(START_POLICY), "--out", str(out), "--guidance-text", "advice",
                *self.warm_settings]  # fmt: skip

    @property
    def warm_settings(self) -> tuple[str, ...]:
        """Those of its warm-up."""
        common = ("--steps", str(self.warm_steps), "--lr", "2e-3")
        waste = ("--waste", str(self.waste)) if self.waste != Recipe.waste else ()
        sure = ("--certainty", str(self.certainty)) if self.certainty != Recipe.certainty else ()
        seed = ("--seed", str(self.number)) if self.number else ()
        return (*common, *waste, *sure, *seed)

    @property
    def digested(self) -> tuple[object, ...]:
        """What is digested of it: its world, its warm-up, and on how many tasks that is
        measured."""
        settings = (*self.warm_settings[:4], "--measured", str(MEASURED), *self.warm_settings[4:])
        return dict(self.options), self.withheld, settings

    def setup(self) -> str:
        """Digest of its world and warm-up."""
        return digest(*self.digested)

    def policy(self, folder: Path) -> Path:
        """The model folder of the warm policy. Raises UserError if there is none, or it was warmed
        for another world or for other steps."""
        if self.withheld is None:
            return START_POLICY
        (warmed,) = warmed_for(folder / self.folder)
        options, skill = all_options("workshop", dict(self.options)), warmed.skill
        wanted = (options, self.withheld, self.waste, self.certainty, self.warm_steps)
        given = (warmed.options, skill.withheld, skill.waste, skill.certainty, warmed.steps)
        if given != wanted:
            raise UserError(
                f"{folder / self.folder}: a warm policy of another world or warm-up; "
                "delete it and run again"
            )
        return folder / self.folder

    def shown(self, folder: Path) -> Path:
        """The model folder of the warm policy. Prints the command that makes it, if it is missing,
        instead of making it."""
        if self.withheld is None:
            return START_POLICY
        out = folder / self.folder
        if not (out / RECORD).exists():
            show_learner(*self.warmup(out))
        return out

    def warm(self, folder: Path) -> dict[str, float]:
        """Warm and measure the policy unless that was done; what was measured of it, shares of 1.
        A folder that a command which was stopped left without its record is made again."""
        if self.withheld is None:
            return {}
        out = folder / self.folder
        if not (out / RECORD).exists():
            shutil.rmtree(out, ignore_errors=True)
            call = [sys.executable, "-m", "learner.cli", *self.warmup(out)]
            made = subprocess.run(call, capture_output=True, text=True, check=False)
            if made.returncode:
                raise UserError(f"{out}: the warm-up failed: {made.stderr[-500:]}")
        (warmed,) = warmed_for(self.policy(folder))
        if not warmed.quality:
            from lab.results.alternate import FreePolicy  # loads torch

            policy = FreePolicy(out)
            measured = asyncio.run(measure(policy, warmed.env, MEASURED, self.options))
            keep_quality(out, {warmed.env: asdict(measured)})
        return warmed_for(out)[0].quality


LONG = 1400
"""Steps of the warm-ups of hard cells: after 700 the policies of some succeed in less than TOLD
of the tasks when they are told the hidden rules. The cells of the other experiments keep 700."""
LONGER = 2100  # in worlds whose policies need more still
WARM_STEPS = {
    "base-0.005-rho-1": 700,
    "base-0.002-rho-1": 700,
    "base-0.002-rho-0.3": LONGER,
    "base-0.0001-rho-0.3": LONGER,
}
"""Of single cells: two that other experiments use, too, and those that need LONGER."""
LIMITS = (60, 80, 100, 140, 200)
EQUAL = {2.4: 16, 1.0: 10, 0.3: 8}
THOUGHT: dict[float, tuple[int, str]] = {2.4: (0, "full"), 1.0: (4, "full"), 0.3: (18, "brief")}
"""For each ρ the words of thought before an answer, and the kind of summary."""


def _regime_map() -> list[Cell]:
    """Every world at every cost of a reflection."""
    return [
        Cell(
            name=name,
            base=base,
            rho=rho,
            options={
                "stations": world.stations,
                "tools": world.tools,
                "exceptions": world.exceptions,
                "words": words,
                "summary": summary,
            },
            withheld=world.withheld,
            warm_steps=WARM_STEPS.get(name, LONG if base <= 0.005 else 700),
            equal=EQUAL[rho],
            steps=LIMITS[place],
            world=world,
        )
        for place, (world, base) in enumerate(zip(WORLDS, BASES, strict=True))
        for rho, (words, summary) in THOUGHT.items()
        for name in (f"base-{base:g}-rho-{rho:g}",)
    ]


BASES = (0.13, 0.02, 0.005, 0.002, 0.0001)
EASIEST = Cell("base-0.25-rho-2.3", base=0.25, rho=2.3)
"""The world of START_POLICY, outside the map."""
CUT_OFF = tuple(
    Cell(
        name,
        base=0.1,
        rho=2.4,
        options={"stations": 5, "tools": 6, "exceptions": 1, "steps": 5},
        withheld=5,
        waste=waste,
        steps=100,
    )
    for name, waste in (("cut-off", 0.15), ("cut-off-less", 0.06))
)
"""There is no step to spare, and the warm start taught to waste some: many attempts are cut off."""
BRIEF = tuple(
    replace(
        cell,
        name=f"{cell.name}-brief",
        rho=0.7 * cell.rho,
        options={**cell.options, "summary": "brief"},
        world=None,
    )
    for cell in _regime_map()
    if cell.options["summary"] == "full"
)
"""Worlds of the map in which reflections have brief summaries."""
HINTED = tuple(
    replace(
        cell,
        name=f"{cell.name}-{hint}",
        options={**cell.options, "hint": hint},
        warm_steps=LONG,
        world=None,
    )
    for cell in _regime_map()
    if cell.rho == 1 and cell.base in (0.13, 0.005, 0.002)
    for hint in ("where", "none")
)
"""Worlds of the map whose remark after a mistake says only where it was, or nothing. Their warm
starts are LONG: after 700 steps the first was told 0.89."""
LONG_ROW = Cell(
    "long-row",
    base=0.3,
    rho=1.0,
    options={"stations": 12, "tools": 6, "exceptions": 1, "decisive": 2},
    withheld=5,
    certainty=0.6,
    warm_steps=LONG,
    steps=15,
)
"""A long row of which two stations count; its runs are stopped before they have learned it."""
CELLS = {cell.name: cell for cell in (EASIEST, *CUT_OFF, *_regime_map(), *BRIEF, *HINTED, LONG_ROW)}


def setup_of(line: Mapping[str, Any]) -> str | None:
    """The setup that a line about a warm policy has today."""
    cell = CELLS.get(line["cell"])
    return replace(cell, number=line.get("policy", 0)).setup() if cell is not None else None
