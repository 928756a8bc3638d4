"""E8: offline training on the store of a run that was stopped early:
`python -m lab.results.stopped_runs`.

    a few steps of R³L ─► store, policy ─► r3l-learner train --offline ─► held-out success
                             └─────────────── held-out success

Runs that are found in the file are not made again; stores are kept in `build/offline`.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lab.dry_run import DRY_RUN
from lab.results.alternate import FreePolicy, Learner, evaluate
from lab.results.buffered import buffered
from lab.results.cells import CELLS, EASIEST, Cell
from lab.results.experiments import (
    BASE,
    OFFLINE,
    OFFLINE_STEPS,
    REUSED,
    STEPS,
    STORED,
    load,
    offline_setup,
    offline_setup_of,
)
from lab.results.lines import LINES, POLICIES, ROOT, append, known, read_lines
from r3l.errors import UserError
from r3l.run import config as configuration
from r3l.run.config import RunConfig

FILE = "e8.jsonl"
LEAST_ESS, MOST_KL, BEYOND = 0.3, 0.5, 3
"""Limits of a share of the tokens and of nats a token, and the steps in a row beyond them, from
which on the stored data are not trusted."""
STOPPED = (*STORED, "algorithm=r3l")
"""Settings of the run that is stopped."""
STORES = ROOT / "build" / "offline"


@click.command()
@click.option("--cell", "cells", multiple=True, default=(EASIEST.name,), show_default=True)
@click.option("--variant", "variants", multiple=True, default=tuple(OFFLINE), show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--lines", type=click.Path(path_type=Path), default=LINES, help="results files")
@click.option("--policies", type=click.Path(path_type=Path), default=POLICIES, help="warm policies")
@click.option("--stores", type=click.Path(path_type=Path), default=STORES, help="stopped runs")
@DRY_RUN
def main(
    cells: Sequence[str],
    variants: Sequence[str],
    seeds: int,
    lines: Path,
    policies: Path,
    stores: Path,
    dry_run: bool,
) -> None:
    """Make the missing runs, one after the other."""
    try:
        known("--cell", cells, CELLS)
        known("--variant", variants, OFFLINE)
        for seed in range(seeds):
            for name in cells:
                there = {_key(line) for line in read_lines(lines / FILE, offline_setup_of)}
                if dry_run:
                    _show(CELLS[name], seed, [v for v in variants if (name, v, seed) not in there])
                    continue
                for key in [(name, v, seed) for v in variants if (name, v, seed) not in there]:
                    stopped = asyncio.run(stop(CELLS[name], seed, policies, stores))
                    append(lines / FILE, measure(CELLS[name], key[1], seed, stopped))
                    click.echo(f"{key}: done")
    except UserError as error:
        click.echo(f"lab.results.stopped_runs: {error}", err=True)
        sys.exit(2)


def _show(cell: Cell, seed: int, missing: Sequence[str]) -> None:
    """Build the configurations of a stopped run and of every offline run from it, and print which
    are missing."""
    for settings in (STOPPED, *(own for _, own in OFFLINE.values())):
        _config(cell, seed, Path(cell.folder), settings)
    click.echo(f"{cell.name}, seed {seed}: {', '.join(missing) or 'no'} offline runs are missing")


async def stop(cell: Cell, seed: int, policies: Path, stores: Path) -> Path:
    """The folder of a stopped run: `store`, `model` and, once all is there, `success.json`."""
    folder = stores / cell.name / str(seed)
    if (folder / "success.json").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = cell.policy(policies)
    config = _config(cell, seed, start, STOPPED)
    learner = Learner(config)
    with buffered(config, store=folder / "store") as batches:
        for version in range(STEPS):
            draw, _ = await batches.batch(learner.policy, version)
            learner.learn(draw)
            batches.trained(version + 1)
    shutil.copytree(start, folder / "model")
    learner.policy.model.save_pretrained(folder / "model")
    found = {
        "base": (await _success(start, config))["success"],
        "before": (await _success(folder / "model", config))["success"],
    }
    (folder / "success.json").write_text(json.dumps(found), encoding="utf-8")
    return folder


def measure(cell: Cell, variant: str, seed: int, stopped: Path) -> dict[str, Any]:
    """The line of one offline run from a stopped one. Raises UserError if it fails."""
    settings = (*OFFLINE[variant][1], *REUSED, f"learner.steps={OFFLINE_STEPS}")
    config = _config(cell, seed, stopped / "model", settings)
    with tempfile.TemporaryDirectory(prefix="r3l-results-") as scratch:
        run, file = Path(scratch, "run"), Path(scratch, "config.yaml")
        file.write_text(configuration.dump(config), encoding="utf-8")
        command = [sys.executable, "-m", "learner.cli", "train", "--config", str(file)]
        command += ["--run", str(run), "--offline", str(stopped / "store")]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if made.returncode:
            raise UserError(
                f"{cell.name} {variant} {seed}: the learner ended: {made.stderr[-500:]}"
            )
        after = asyncio.run(_success(run / "model", config))
        trust = trusted((run / "progress.jsonl").read_text(encoding="utf-8").splitlines())
    named = {"experiment": "e8", "cell": cell.name, "variant": variant, "seed": seed}
    named["setup"] = offline_setup(cell, variant)
    before = json.loads((stopped / "success.json").read_text(encoding="utf-8"))
    line: dict[str, Any] = named | before | {"after": after["success"], "trust": trust}
    return line


def trusted(lines: Sequence[str]) -> dict[str, float]:
    """The effective sample size and the KL to the sampling policies of the last step, on base
    attempts if there are any, and the first of BEYOND steps in a row beyond a limit (−1: none)."""
    ess, kl, lost_at, beyond = 1.0, 0.0, -1, 0
    for step in (one for one in map(json.loads, lines) if one["kind"] == "step"):
        end = "_base" if "learner/behaviour_ess_base" in step else ""
        ess, kl = (step[f"learner/behaviour_{name}{end}"] for name in ("ess", "kl"))
        beyond = 0 if ess >= LEAST_ESS and kl <= MOST_KL else beyond + 1
        if beyond == BEYOND and lost_at < 0:
            lost_at = step["step"] - BEYOND + 1
    return {"ess": ess, "kl": kl, "lost_at": lost_at}


def _config(cell: Cell, seed: int, model: Path, settings: Sequence[str]) -> RunConfig:
    own = [*BASE, *cell.overrides(), *settings, f"seed={seed}"]
    return load(model, own)


async def _success(model: Path, config: RunConfig) -> dict[str, float]:
    return await evaluate(FreePolicy(model, seed=config.seed), config)


def _key(line: dict[str, Any]) -> tuple[str, str, int]:
    return line["cell"], line["variant"], line["seed"]


if __name__ == "__main__":
    main()
