"""E5: the wall clock of whole systems: `python -m benchmarks.results.wall_clock`.

    r3l-launch: actors with vLLM, buffer, learner ─► progress.jsonl ─► docs/results/e5.jsonl

Two cells, one easy and one hard; the machine should do nothing else. Runs that are found in the
file are not made again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.results.__main__ import LINES, POLICIES, append, read_lines
from benchmarks.results.cells import CELLS
from benchmarks.results.experiments import SETTINGS, VARIANTS, Run
from r3l.errors import UserError

EASY, HARD = "base-0.13-rho-1", "base-0.002-rho-1"
FILE = "e5.jsonl"
LIMIT_S = 3600.0  # of one run


@click.command()
@click.option("--cell", "cells", multiple=True, default=(EASY, HARD), show_default=True)
@click.option("--variant", "variants", multiple=True, default=("r3l", "grpo"), show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--lines", type=click.Path(path_type=Path), default=LINES, help="results files")
@click.option("--policies", type=click.Path(path_type=Path), default=POLICIES, help="warm policies")
def main(
    cells: Sequence[str], variants: Sequence[str], seeds: int, lines: Path, policies: Path
) -> None:
    """Make the missing runs, one after the other."""
    try:
        for seed in range(seeds):
            for cell in cells:
                for variant in variants:
                    run = Run("e5", CELLS[cell], variant, seed)
                    if not any(_key(line) == run.key for line in read_lines(lines / FILE)):
                        append(lines / FILE, measure(run, policies))
                        click.echo(f"{run.key}: done")
    except UserError as error:
        click.echo(f"benchmarks.results.wall_clock: {error}", err=True)
        sys.exit(2)


def measure(run: Run, policies: Path) -> dict[str, Any]:
    """The line of one run. Raises UserError if the run fails."""
    model = run.cell.policy(policies)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        command = [
            sys.executable,
            "-m",
            "launch.cli",
            "--run",
            str(folder),
            "--config",
            str(SETTINGS),
        ]
        settings = [
            f"model={model}",
            f"learner.steps={run.cell.steps}",
            f"eval.every={run.cell.steps}",
            f"seed={run.seed}",
            *run.cell.overrides(),
            *VARIANTS[run.variant].overrides,
        ]
        try:
            made = subprocess.run(
                [*command, *settings], capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"{run.key}: not done after {LIMIT_S:.0f} s") from None
        if made.returncode:
            raise UserError(f"{run.key}: r3l-launch ended with {made.returncode}: {made.stdout}")
        return _line(run, folder)


def _line(run: Run, folder: Path) -> dict[str, Any]:
    """What the run's progress says: for each step the tokens and the seconds since the first
    evaluation, when everything had started."""
    text = (folder / "progress.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    evaluations = [line for line in lines if line["kind"] == "eval"]
    steps = [line for line in lines if line["kind"] == "step"]
    tokens, curve = 0.0, {name: list[float | None]() for name in ("tokens", "wall", "success_base")}
    for step in steps:
        tokens += step["group/generated_tokens"]
        curve["tokens"].append(tokens)
        curve["wall"].append(round(step["time"] - evaluations[0]["time"], 1))
        curve["success_base"].append(step.get("group/success_base"))
    cell, variant, seed = run.key
    named = {"experiment": "e5", "cell": cell, "variant": variant, "seed": seed}
    return named | {"success": evaluations[-1]["success"], "steps": len(steps), "curve": curve}


def _key(line: dict[str, Any]) -> tuple[str, str, int]:
    return line["cell"], line["variant"], line["seed"]


if __name__ == "__main__":
    main()
