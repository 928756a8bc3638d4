"""Mistakes on a command line are one line each."""

import click
import pytest
from click.testing import CliRunner

from r3l.process.usage import OneLine, OneLineGroup


@click.group(cls=OneLineGroup)
def tool() -> None:
    """A group."""


@tool.command()
@click.option("--count", type=click.IntRange(1, 9), required=True)
@click.option("--share", type=click.FloatRange(0, 1, min_open=True))
@click.option("--pair", nargs=2)
@click.option("--fast", is_flag=True)
def go(**given: object) -> None:
    """A command."""


@click.command(cls=OneLine)
@click.argument("place")
def alone(place: str) -> None:
    """A command without a group."""
    raise click.UsageError(f"place {place} is\n  far away.")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("go", "tool: --count: is missing; see tool go --help"),
        ("go --count 10", "tool: --count: must be from 1 to 9, not 10; see tool go --help"),
        ("go --count x", "tool: --count: must be a whole number, not 'x'; see tool go --help"),
        ("go --share 0", "tool: --share: must be above 0 and at most 1, not 0.0; see tool go"),
        ("go --share x", "tool: --share: must be a number, not 'x'; see tool go --help"),
        ("go --count", "tool: --count: needs a value; see tool"),
        ("go --pair 1", "tool: --pair: needs 2 values; see tool"),
        ("go --fast=1", "tool: --fast: takes no value; see tool"),
        ("go --cuont 1", "tool: --cuont: no such option (did you mean --count?); see tool go"),
        ("go --count 1 more", "tool: too many arguments: more; see tool go --help"),
        ("gone", "tool: no such command 'gone'"),
    ],
)
def test_each_mistake_is_one_line_in_plain_words(arguments: str, line: str) -> None:
    result = CliRunner().invoke(tool, arguments.split(), prog_name="tool")
    assert result.exit_code == 2 and not result.stdout
    assert result.stderr.startswith(line) and result.stderr.count("\n") == 1


def test_a_commands_own_refusal_is_one_line_too() -> None:
    result = CliRunner().invoke(alone, ["here"], prog_name="alone")
    assert result.stderr == "alone: place here is far away; see alone --help\n"
    assert CliRunner().invoke(alone, prog_name="alone").stderr.startswith("alone: PLACE: is miss")


def test_a_group_without_a_command_shows_its_help() -> None:
    result = CliRunner().invoke(tool, [], prog_name="tool")
    assert result.exit_code == 2 and "Commands:" in result.output
