"""Defines the commands `r3l-learner weights` and `r3l-learner replay`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from r3l.files.run_folder import RunFolder
from r3l.process.command_line import echo

DIFFERS = 1
"""Exit code if a replay differs from the run."""


@click.command("weights")
@click.argument("run", type=Path)
@click.option("--version", type=click.IntRange(0), required=True, help="optimizer steps done")
@click.option("--out", type=Path, required=True, help="model folder to write, must not exist")
def weights_command(run: Path, version: int, out: Path) -> None:
    """Rebuild a published version of RUN from its journal, bit for bit."""
    from learner.offline.rebuild import write_version

    echo(write_version(run, RunFolder(run).settings_of(version), version, out))


@click.command("replay")
@click.argument("run", type=Path)
@click.argument("step", type=click.IntRange(1))
def replay_command(run: Path, step: int) -> None:
    """Execute optimizer step STEP of RUN again, from the newest checkpoint before it, and compare
    its loss and weights with the original ones. Exit code 1 if something differs."""
    from learner.offline.replayed_run import ReplayedRun

    replayed, same = ReplayedRun(run, step), True
    try:
        while replayed.version < step:
            done = replayed.advance()
            echo(done.line())
            same = same and all(done.same.values())
    finally:
        replayed.close()
    if not same:
        sys.exit(DIFFERS)
