"""Reports a wrong command line in one line: click's sentence and where the help is."""

from __future__ import annotations

import sys
from typing import Any

import click


class OneLine(click.Command):
    """A command that reports errors in one line, which begins with its name."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs the command and exits: 2 for a wrong command line, 130 if it was interrupted."""
        exits = options.get("standalone_mode", True)
        options["standalone_mode"] = False
        if not exits:
            return super().main(*args, **options)
        try:
            sys.exit(super().main(*args, **options))
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
        except click.UsageError as error:
            message = " ".join(error.format_message().split())
            end = "" if message.endswith((".", "?")) else "."
            path = error.ctx.command_path if error.ctx else self.name
            click.echo(f"{self.name}: {message}{end} Try '{path} --help'.", err=True)
        except click.Abort:
            sys.exit(130)
        sys.exit(2)


class OneLineGroup(OneLine, click.Group):
    """A group of commands that reports errors as OneLine does."""
