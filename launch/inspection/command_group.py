"""The commands of `r3l-launch`: `train`, and commands that inspect a run or a policy.

`train` is the default: an option or a setting (KEY=VALUE) cannot be mistaken for a command.
The other commands are imported only when they are used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from r3l.errors import R3LError, UserError
from r3l.process.command_line import OneLineGroup, echo

DEFAULT = "train"
INSPECTIONS = {
    "status": "launch.inspection.status",
    "doctor": "launch.inspection.doctor",
    "report": "launch.inspection.report",
}
"""Module by name; the module defines the command under its name."""
NAMES = ", ".join([DEFAULT, *INSPECTIONS])


class LaunchCommands(OneLineGroup):
    """The command group: `train`, which is the default, and INSPECTIONS."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `train` in front of the arguments unless they start with a command."""
        named = args and not args[0].startswith("-") and "=" not in args[0]
        return super().parse_args(ctx, args if named else [DEFAULT, *args])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Import a command. Raises click.UsageError if the name is unknown."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name not in INSPECTIONS:
            ctx.fail(f"{cmd_name!r} is neither a setting KEY=VALUE nor a command ({NAMES})")
        command: click.Command = getattr(import_module(INSPECTIONS[cmd_name]), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; reports a failure in one line."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            _end(error, 2)
        except (R3LError, OSError) as error:  # a damaged store, a full disk
            _end(error, 1)


def _end(error: Exception, code: int) -> None:
    echo(f"r3l-launch: {error}", err=True)
    sys.exit(code)
