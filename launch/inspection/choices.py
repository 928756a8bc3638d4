"""What can be chosen by name, as a table: `r3l-launch --list`."""

from __future__ import annotations

import textwrap

import click


def show(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    """Print the table and exit, if the option is given."""
    if given and not ctx.resilient_parsing:
        click.echo(table())
        ctx.exit()


def table() -> str:
    """The names of presets, environments and algorithms."""
    from envs.registry import ENVIRONMENTS, FAMILIES
    from launch.checks.presets import PRESETS
    from r3l.algorithms.registry import REGISTRY

    families = [f"{family}:NAME" for family in FAMILIES]
    rows = {
        "--preset": sorted(path.stem for path in PRESETS.glob("*.yaml")),
        "--env": [*ENVIRONMENTS, *families, "path/to/file.py:Class"],
        "algorithm=": [*REGISTRY, "path/to/file.py:Class"],
    }
    formatter = click.HelpFormatter(width=100)
    formatter.write_dl([(choice, ", ".join(names)) for choice, names in rows.items()])
    return textwrap.dedent(formatter.getvalue()).rstrip()
