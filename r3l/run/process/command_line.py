"""Writes to the user's terminal, and reports errors in one line."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from r3l.errors import OF_ENGINES, UserError, install_module
from r3l.run.process.file_modes import set_file_modes
from r3l.text import printable

version_option = click.version_option(package_name="r3l", message="r3l %(version)s")
"""The option --version of every command."""


def echo(text: str, *, err: bool = False) -> None:
    """Prints a line. Escapes control characters, since the text may come from a model. Use this
    instead of click's echo. Raises UserError if the line cannot be written."""
    try:
        click.echo(printable(text), err=err)
    except BrokenPipeError:  # whoever read the lines has read enough
        raise
    except OSError as error:
        stream = "standard error" if err else "standard output"
        raise UserError(
            f"{stream}: cannot be written ({error.strerror}); free disk space, or redirect it"
        ) from None


def tell(text: str, *, err: bool = False) -> None:
    """Prints an unimportant line, as `echo` does. Ignores a full disk or a closed terminal."""
    with suppress(OSError, UserError):
        echo(text, err=err)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligns the cells of a table; returns a line for each row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


class OneLine(click.Command):
    """Reports a command's error in one line. Exits with 2 for a UserError. `errors`: the exit codes
    for other error classes. The first matching class decides."""

    def __init__(
        self, *args: Any, errors: Mapping[type[Exception], int] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.errors: dict[type[Exception], int] = {UserError: 2, **(errors or {})}

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs the command. Exits with 2 for an invalid command line, with 130 if interrupted."""
        options.setdefault("prog_name", self.name)
        exits = options.get("standalone_mode", True)
        options["standalone_mode"] = False
        if not exits:
            return super().main(*args, **options)
        try:
            sys.exit(super().main(*args, **options))
        except tuple(self.errors) as error:
            tell(f"{self.name}: {error}", err=True)
            sys.exit(next(self.errors[kind] for kind in self.errors if isinstance(error, kind)))
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
        except click.UsageError as error:
            message = " ".join((self.explain(error) or error.format_message()).split())
            end = "" if message.endswith((".", "?")) else "."
            path = error.ctx.command_path if error.ctx else self.name
            tell(f"{self.name}: {message}{end} Try '{path} --help'.", err=True)
        except ModuleNotFoundError as error:
            if (module := (error.name or "").partition(".")[0]) not in OF_ENGINES:
                raise
            needs = f"needs {module}, which is not installed; run {install_module(module)}"
            tell(f"{self.name}: {needs}", err=True)
        except click.Abort:
            sys.exit(130)
        finally:
            _drop_unwritten()
        sys.exit(2)

    def explain(self, error: click.UsageError) -> str:
        """Explains a fault of the command line better than click does, or returns ""."""
        return ""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command's function. Files that the function writes are private."""
        set_file_modes()
        return super().invoke(ctx)


def _drop_unwritten() -> None:
    """Drops what could not be written. At the interpreter's end it would change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


class OneLineGroup(OneLine, click.Group):
    """Reports a command group's errors, as OneLine does."""
