"""The option `--dry-run` of every research program: what would be run is checked and printed."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="check and print what would be run, and run nothing"
)


def show_launch(words: Sequence[str]) -> None:
    """Print a command of r3l-launch. Raises click.UsageError or UserError if it would be refused
    for its arguments or settings."""
    from launch.checks.presets import settings_file
    from launch.cli import main
    from r3l.run import config as configuration

    given = _parsed(main, "train", words)
    run = Path(given["run_name"])
    file, demo = settings_file(given["config_path"], given["preset"], run, resume=given["resume"])
    configuration.load(file, given["overrides"], demo=demo)
    click.echo(shlex.join(["r3l-launch", *words]))


def show_learner(command: str, *words: str) -> None:
    """Print a command of r3l-learner. Raises click.UsageError if it would be refused for its
    arguments."""
    from learner.cli import main

    _parsed(main, command, words)
    click.echo(shlex.join(["r3l-learner", command, *words]))


def _parsed(group: click.Group, name: str, words: Sequence[str]) -> dict[str, Any]:
    """The parameters of a command, as it reads them from its arguments."""
    command = group.get_command(click.Context(group), name)
    if command is None:
        raise click.UsageError(f"{group.name} has no command {name!r}")
    return command.make_context(f"{group.name} {name}", list(words)).params
