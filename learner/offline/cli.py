"""`r3l-learner weights`: what a run left behind, asked again."""

from __future__ import annotations

from pathlib import Path

import click

from r3l import config as configuration
from r3l.config import RunConfig
from r3l.errors import UserError


def run_config(run: Path) -> RunConfig:
    """The settings of a run from its folder. Raises UserError."""
    path = run / "config.yaml"
    if not path.is_file():
        raise UserError(f"run {run}: no config.yaml there; give the folder of a run")
    return configuration.load(path)


@click.command("weights")
@click.argument("run", type=Path)
@click.option("--version", type=click.IntRange(0), required=True, help="optimizer steps done")
@click.option("--out", type=Path, required=True, help="model folder to write, must not exist")
def weights_command(run: Path, version: int, out: Path) -> None:
    """Rebuild a published version of RUN from its journal, bit for bit."""
    from learner.offline.rebuild import write_version

    config = run_config(run)
    click.echo(write_version(run, config, version, out))
