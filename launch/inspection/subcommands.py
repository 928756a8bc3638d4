"""The other commands of `r3l-launch`: its first argument may name one; otherwise it trains.

Settings are KEY=VALUE, so a first argument without `=` is never one of them. A command is imported
when it is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from r3l.errors import R3LError, UserError, did_you_mean
from r3l.process.usage import OneLine, UsageLine, one_line

COMMANDS = {
    "status": ("launch.inspection.status", "what every part of a run does, who waits for whom"),
    "doctor": ("launch.inspection.doctor", "what is wrong with a run, and what to do"),
    "report": ("launch.inspection.report", "write a run as one HTML file"),
}
"""Module and purpose by name; the module defines the command under its name."""

OTHERS = {"view": "r3l-buffer view", "eval": "r3l-eval", "resume": "r3l-launch --resume --run NAME",
          "stop": "Ctrl-C, or SIGTERM to r3l-launch"}  # fmt: skip
"""What is asked for by these names."""


class Launch(OneLine):
    """The command that trains, and those of COMMANDS."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """The context of the command that the first argument names, or this one's own."""
        if args and args[0] in COMMANDS:
            name = f"{info_name} {args[0]}"
            with one_line(name):
                return _command(args[0]).make_context(name, args[1:], parent, **extra)
        if args and not args[0].startswith("-") and "=" not in args[0]:
            elsewhere = OTHERS.get(args[0])
            guess = f"; it is {elsewhere}" if elsewhere else did_you_mean(args[0], COMMANDS)
            guess = guess or f"; the commands are {', '.join(COMMANDS)}; a setting is KEY=VALUE"
            raise UsageLine(f"no such command {args[0]!r}{guess}", info_name or "r3l-launch")
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; an error of the user is one line and exit code 2."""
        if ctx.command is self:
            return super().invoke(ctx)
        try:
            return ctx.command.invoke(ctx)
        except UserError as error:
            _end(error, 2)
        except (R3LError, OSError) as error:  # a damaged store, a full disk
            _end(error, 1)
        except KeyboardInterrupt:
            sys.exit(130)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the other commands under the options."""
        with formatter.section("Other commands"):
            lines = [(f"{ctx.info_name} {name}", why) for name, (_, why) in COMMANDS.items()]
            formatter.write_dl(lines)


def _command(name: str) -> click.Command:
    command: click.Command = getattr(import_module(COMMANDS[name][0]), name)
    return command


def _end(error: Exception, code: int) -> None:
    click.echo(f"r3l-launch: {error}", err=True)
    sys.exit(code)
