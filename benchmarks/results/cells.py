"""The cells of the regime map: worlds of the workshop, each with a warm policy of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.idealised import WORLDS, World
from envs.builtin.policy import builtin_policy
from r3l.errors import UserError

QUALITY = "quality.json"
TOLD = 0.9  # a cell counts if its policy succeeds as often once the hidden rules are told


@dataclass(frozen=True)
class Cell:
    """One world and how its policy is warmed.

    `options`: of the environment; `withheld`: rules that the warm start does not teach. `base` and
    `rho`: the base success, and the cost of a reflection in attempts, that the cell stands for.
    `equal`: group size at which a step of GRPO samples as many tokens as one of R³L. `steps`: limit
    of optimizer steps. `world`: its idealisation, if it has one.
    """

    name: str
    base: float
    rho: float
    options: Mapping[str, int | str] = field(default_factory=dict)
    withheld: int | None = None
    equal: int = 16
    steps: int = 60
    world: World | None = None

    def overrides(self) -> tuple[str, ...]:
        """The settings of a run in this cell."""
        return tuple(f"env.options.{name}={value}" for name, value in self.options.items())

    def warmup(self, out: Path) -> list[str]:
        """The command that warms the policy of this cell."""
        dials = [part for k, v in self.options.items() for part in ("--set", f"{k}={v}")]
        return ["warmup", "--env", "workshop", *dials, *WARM, "--withheld", str(self.withheld),
                "--out", str(out)]  # fmt: skip

    def policy(self, folder: Path) -> Path:
        """The model folder of the warm policy. Raises UserError if it was not warmed."""
        if self.withheld is None:
            return builtin_policy()
        if not (folder / self.name / QUALITY).exists():
            raise UserError(f"{folder / self.name}: no warm policy; `make results` makes it")
        return folder / self.name

    def warm(self, folder: Path) -> dict[str, Any]:
        """Warm the policy unless it is there; what was measured of it, shares of 1."""
        out = folder / self.name
        if not (out / QUALITY).exists():
            if out.exists():
                raise UserError(f"{out}: holds half a warm start; delete it and run again")
            command = [sys.executable, "-m", "learner.cli", *self.warmup(out)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        quality: dict[str, Any] = json.loads((out / QUALITY).read_text(encoding="utf-8"))
        return quality


WARM: tuple[str, ...] = ("--measured", "200")
"""Settings of every warm start."""

LIMITS = (60, 80, 100, 140, 200)
EQUAL = {2.4: 16, 1.0: 10, 0.3: 8}
THOUGHT: dict[float, tuple[tuple[int, ...], str]] = {
    2.4: ((0, 0, 0, 0, 0), "full"),
    1.0: ((6, 6, 6, 6, 6), "full"),
    0.3: ((17, 17, 17, 17, 17), "brief"),
}
"""For each ρ the words of thought before an answer, world by world, and the kind of summary."""


def _regime_map() -> list[Cell]:
    """Every world at every cost of a reflection."""
    return [
        Cell(
            name=f"base-{base:g}-rho-{rho:g}",
            base=base,
            rho=rho,
            options={
                "stations": world.stations,
                "tools": world.tools,
                "words": words[place],
                "summary": summary,
            },
            withheld=world.withheld,
            equal=EQUAL[rho],
            steps=LIMITS[place],
            world=world,
        )
        for place, (world, base) in enumerate(zip(WORLDS, BASES, strict=True))
        for rho, (words, summary) in THOUGHT.items()
    ]


BASES = (0.13, 0.02, 0.007, 0.0014, 0.0002)
DEMO = Cell("demo", base=0.25, rho=2.3)
CELLS = {cell.name: cell for cell in (DEMO, *_regime_map())}
