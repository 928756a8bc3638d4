"""E5: whole systems: `python -m lab.results.wall_clock`.

    r3l-launch: actors with vLLM, buffer, learner ─► progress.jsonl ─► lab/lines/e5.jsonl

Two cells of the map, one easy and one hard, for the wall clock; the machine should do nothing else.
`--cell scienceworld` plays ScienceWorld instead, `--cell scienceworld-long` with more steps. Runs
that are found in the file are not made again.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from envs.registry import all_options
from lab.dry_run import DRY_RUN, show_launch
from lab.results.cells import CELLS
from lab.results.experiments import SETTINGS, VARIANTS, as_measured, parsed
from lab.results.lines import LINES, POLICIES, append, digest, known, processor, read_lines
from lab.warmed import warmed_for
from launch.checks.presets import preset_file
from r3l.errors import UserError
from r3l.run import config as configuration

EASY, HARD = "base-0.13-rho-1", "base-0.002-rho-1"
SCIENCEWORLD, SCIENCEWORLD_LONG = "scienceworld", "scienceworld-long"
STEPS = {SCIENCEWORLD: 15, SCIENCEWORLD_LONG: 45}
"""Optimizer steps of a run in ScienceWorld."""
PRESET = "scienceworld-small"
GUIDED = "lab/scienceworld/guided.py:GuidedScienceWorld"
"""The environment of the warm-up: ScienceWorld with a demonstrator."""
WORLD = ("tasks", "simplification", "brief", "max_steps")
"""Options of the environment that a warm policy must share with PRESET."""
FILE = "e5.jsonl"
LIMIT_S = 5400.0  # of one run


@dataclass(frozen=True)
class System:
    """One run of r3l-launch. `cell`: one of CELLS or of STEPS."""

    cell: str
    variant: str
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What names it among the runs of E5."""
        return self.cell, self.variant, self.seed

    def arguments(self, policies: Path) -> list[str]:
        """Those of r3l-launch. Raises UserError if there is no warm policy in `policies`."""
        if self.cell in STEPS:
            model = policies / SCIENCEWORLD
            _check_world(model)
        else:
            model = CELLS[self.cell].policy(policies)
        return self.with_model(model)

    def with_model(self, model: Path) -> list[str]:
        """The arguments of r3l-launch for a warm policy."""
        world = ["--preset", PRESET] if self.cell in STEPS else ["--config", str(SETTINGS)]
        return [*world, f"model={model}", *as_measured(self.settings())]

    def show(self, policies: Path) -> None:
        """Print its command, and before it the one that makes a missing warm policy of a cell."""
        cell = CELLS.get(self.cell)
        model = cell.shown(policies) if cell else policies / SCIENCEWORLD
        show_launch(["--run", "RUN", *self.with_model(model)])

    def settings(self) -> list[str]:
        """Its settings, over those of PRESET in ScienceWorld and of SETTINGS in a cell."""
        if self.cell in STEPS:
            steps, world = STEPS[self.cell], tuple[str, ...]()
        else:
            cell = CELLS[self.cell]
            steps, world = cell.steps // 2, cell.overrides()  # steps enough for 0.8
        budget = (f"learner.steps={steps}", f"eval.every={steps}", f"seed={self.seed}")
        return [*world, *budget, *VARIANTS[self.variant].overrides]

    def setup(self) -> str:
        """Digest of all that was set for it."""
        if self.cell in STEPS:
            return digest(parsed(preset_file(PRESET)), self.settings())
        return digest(parsed(SETTINGS), self.settings(), CELLS[self.cell].setup())


def setup_of(line: Mapping[str, Any]) -> str | None:
    """The setup that a line of E5 has today."""
    if line["cell"] not in (*CELLS, *STEPS) or line["variant"] not in VARIANTS:
        return None
    return System(line["cell"], line["variant"], line["seed"]).setup()


@click.command()
@click.option("--cell", "cells", multiple=True, default=(EASY, HARD), show_default=True)
@click.option("--variant", "variants", multiple=True, default=("r3l", "grpo"), show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--lines", type=click.Path(path_type=Path), default=LINES, help="results files")
@click.option("--policies", type=click.Path(path_type=Path), default=POLICIES, help="warm policies")
@DRY_RUN
def main(
    cells: Sequence[str],
    variants: Sequence[str],
    seeds: int,
    lines: Path,
    policies: Path,
    dry_run: bool,
) -> None:
    """Make the missing runs, one after the other."""
    try:
        known("--cell", cells, (*CELLS, *STEPS))
        known("--variant", variants, VARIANTS)
        for seed in range(seeds):
            for cell in cells:
                for variant in variants:
                    run = System(cell, variant, seed)
                    found = read_lines(lines / FILE, setup_of)
                    there = any(_key(line) == run.key for line in found)
                    if dry_run:
                        run.show(policies)
                        click.echo(f"{run.key}: {'there' if there else 'missing'}")
                    elif not there:
                        append(lines / FILE, measure(run, policies))
                        click.echo(f"{run.key}: done")
    except UserError as error:
        click.echo(f"lab.results.wall_clock: {error}", err=True)
        sys.exit(2)


def measure(run: System, policies: Path) -> dict[str, Any]:
    """The line of one run. Raises UserError if the run fails."""
    arguments = run.arguments(policies)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        command = [sys.executable, "-m", "launch.cli", "--run", str(folder), *arguments]
        try:
            made = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"{run.key}: not done after {LIMIT_S:.0f} s") from None
        if made.returncode:
            raise UserError(f"{run.key}: r3l-launch ended with {made.returncode}: {made.stdout}")
        return _line(run, folder)


def _check_world(model: Path) -> None:
    """Raise UserError unless `model` was warmed up for the tasks and the texts of PRESET."""
    worlds = warmed_for(model)
    env = configuration.load(preset_file(PRESET), [f"model={model}"]).env
    wanted = all_options(env.name, dict(env.options))
    for warmed in worlds:
        if warmed.env == GUIDED and all(warmed.options.get(k) == wanted[k] for k in WORLD):
            return
    raise UserError(
        f"{model}: a warm policy of another world; ScienceWorld's runs need "
        + ", ".join(f"{name}={wanted[name]}" for name in WORLD)
        + f" of {env.name}; docs/results/appendix/scienceworld.md has the command that makes it"
    )


def _line(run: System, folder: Path) -> dict[str, Any]:
    """What the run's progress says: for each step the tokens and the seconds since the first
    evaluation ended or the first step began, whichever came first; `before` and `success`: its
    first and last evaluation."""
    text = (folder / "progress.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    evaluations = [line for line in lines if line["kind"] == "eval"]
    steps = [line for line in lines if line["kind"] == "step"]
    began = min(evaluations[0]["time"], steps[0]["time"] - steps[0]["learner/step_s"])
    tokens, curve = 0.0, {name: list[float | None]() for name in ("tokens", "wall", "success_base")}
    for step in steps:
        tokens += step["group/generated_tokens"]
        curve["tokens"].append(tokens)
        curve["wall"].append(round(step["time"] - began, 1))
        curve["success_base"].append(step.get("group/success_base"))
    named = {"experiment": "e5", "cell": run.cell, "variant": run.variant, "seed": run.seed}
    named |= {"setup": run.setup(), "machine": processor()}
    first, last = evaluations[0], evaluations[-1]
    measured = {
        "before": first["success"],
        "before_reward": first["reward"],
        "success": last["success"],
        "reward": last["reward"],
        "steps": len(steps),
    }
    return named | measured | {"curve": curve}


def _key(line: dict[str, Any]) -> tuple[str, str, int]:
    return line["cell"], line["variant"], line["seed"]


if __name__ == "__main__":
    main()
