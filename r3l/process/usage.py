"""Mistakes on a command line, each in one line: `r3l-launch: --actors: must be at least 1, …`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from r3l.errors import did_you_mean

WORDS = (
    (r"(.+) is not in the range x>=(.+)", r"must be at least \2, not \1"),
    (r"(.+) is not in the range 0<x<=(.+)", r"must be above 0 and at most \2, not \1"),
    (r"(.+) is not in the range (.+)<=x<=(.+)", r"must be from \2 to \3, not \1"),
    (r"(.+) is not a valid integer(?: range)?", r"must be a whole number, not \1"),
    (r"(.+) is not a valid float(?: range)?", r"must be a number, not \1"),
    (r"(.+) is not one of (.+)", r"must be one of \2, not \1"),
    (r"Got unexpected extra arguments? \((.+)\)", r"too many arguments: \1"),
    (r"Option '(.+)' requires an argument", r"\1: needs a value"),
    (r"Option '(.+)' requires (\d+) arguments", r"\1: needs \2 values"),
    (r"Option '(.+)' does not take a value", r"\1: takes no value"),
)
"""click's messages and ours."""


class UsageLine(click.UsageError):
    """A UsageError that is shown as one line."""

    def __init__(self, line: str, path: str) -> None:
        super().__init__(line)
        self.path = path

    def show(self, file: Any = None) -> None:
        name = self.path.partition(" ")[0]
        click.echo(f"{name}: {self.message}; see {self.path} --help", file=file, err=True)


class OneLine(click.Command):
    """A command, or a group with its commands, that answers each wrong command line with one
    line."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with one_line(info_name or "r3l"):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line(ctx.command_path):
            return super().invoke(ctx)


class OneLineGroup(OneLine, click.Group):
    """A group whose commands answer as OneLine does."""


@contextmanager
def one_line(path: str) -> Iterator[None]:
    """Mistakes within are raised as UsageLine; `path`: the command, such as `r3l-launch status`."""
    try:
        yield
    except (UsageLine, click.exceptions.NoArgsIsHelpError):
        raise
    except click.UsageError as error:
        raise UsageLine(_line(error), error.ctx.command_path if error.ctx else path) from None


def _line(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        guess = did_you_mean(error.option_name, error.possibilities or ())
        return f"{error.option_name}: no such option{guess}"
    if isinstance(error, click.MissingParameter):
        hint = error.param.get_error_hint(error.ctx) if error.param and error.ctx else "a value"
        return f"{_plain(hint)}: is missing"
    text = " ".join(error.message.split()).removesuffix(".")
    for theirs, ours in WORDS:
        if re.fullmatch(theirs, text):
            text = re.sub(theirs, ours, text)
            break
    if isinstance(error, click.BadParameter) and error.param is not None and error.ctx is not None:
        return f"{_plain(error.param.get_error_hint(error.ctx))}: {text}"
    return text.replace("No such command", "no such command")


def _plain(hint: str) -> str:
    return hint.replace("'", "")
