"""Wrong command lines are answered in one line."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from r3l.errors import UserError
from r3l.run.process.command_line import OneLine, OneLineGroup, columns, echo


@click.group("tool", cls=OneLineGroup)
def tool() -> None:
    """A group."""


@tool.command()
@click.option("--count", type=click.IntRange(1, 9), required=True)
@click.option("--kind", type=click.Choice(["a", "b"]))
@click.option("--fast", is_flag=True)
def go(**given: object) -> None:
    """A command."""


@click.command("alone", cls=OneLine)
@click.argument("place")
def alone(place: str) -> None:
    """A command without a group."""
    if place == "nowhere":
        raise KeyboardInterrupt
    if place.startswith("module "):
        raise ModuleNotFoundError(name=place.removeprefix("module "))
    raise click.UsageError(f"place {place} is\n  far away")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("go", "tool go"),
        ("go --count 10", "tool go"),
        ("go --count x", "tool go"),
        ("go --count", "tool"),
        ("go --fast=1", "tool"),
        ("go --cuont 1", "tool go"),
        ("go --count 1 --kind c", "tool go"),
        ("go --count 1 more", "tool go"),
        ("gone", "tool"),
    ],
)
def test_each_mistake_is_one_line_with_the_command_whose_help_is_next(
    arguments: str, hint: str
) -> None:
    result = CliRunner().invoke(tool, arguments.split(), prog_name="tool")
    assert result.exit_code == 2 and not result.stdout
    assert result.stderr.startswith("tool: ") and result.stderr.count("\n") == 1
    assert result.stderr.endswith(f" Try '{hint} --help'.\n")


def test_a_commands_own_refusal_is_one_line_too() -> None:
    result = CliRunner().invoke(alone, ["here"], prog_name="alone")
    assert result.exit_code == 2
    assert result.stderr == "alone: place here is far away. Try 'alone --help'.\n"


def test_named_errors_have_their_exit_codes_and_one_line() -> None:
    @click.command("tool", cls=OneLine, errors={KeyError: 2, LookupError: 1})
    @click.argument("kind")
    def fail(kind: str) -> None:
        raise {"key": KeyError, "index": IndexError, "user": UserError, "other": TypeError}[kind](
            "no"
        )

    for kind, code in {"key": 2, "index": 1, "user": 2}.items():
        result = CliRunner().invoke(fail, [kind])
        assert result.exit_code == code and not result.stdout, kind
        assert result.stderr.startswith("tool: ") and result.stderr.count("\n") == 1, kind
    assert isinstance(CliRunner().invoke(fail, ["other"]).exception, TypeError)


def test_files_are_private_and_help_needs_no_valid_umask(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        assert CliRunner().invoke(tool, ["go", "--count", "1"]).exit_code == 0
        assert os.umask(0) == 0o077
    finally:
        os.umask(before)
    monkeypatch.setenv("R3L_UMASK", "9")
    refused = CliRunner().invoke(tool, ["go", "--count", "1"])
    assert refused.exit_code == 2 and refused.stderr.startswith("tool: R3L_UMASK=")
    assert CliRunner().invoke(tool, ["--help"]).exit_code == 0


def test_other_ends_have_their_exit_codes() -> None:
    assert CliRunner().invoke(tool, ["go", "--count", "1"]).exit_code == 0
    assert CliRunner().invoke(alone, ["nowhere"]).exit_code == 130
    assert CliRunner().invoke(tool, ["--help"]).exit_code == 0


def test_a_group_without_a_command_shows_its_help() -> None:
    result = CliRunner().invoke(tool, [], prog_name="tool")
    assert result.exit_code == 2 and "Commands:" in result.output


WRITES = """
import click
from r3l.run.process.command_line import OneLine, echo, tell

@click.command("writes", cls=OneLine)
@click.argument("how")
def writes(how):
    {"echo": echo, "tell": tell}[how]("a line")
    print("went on", file=open("{file}", "a"))

writes()
"""


@pytest.mark.parametrize(("how", "code", "went_on"), [("echo", 2, ""), ("tell", 0, "went on\n")])
def test_a_full_output_ends_only_a_command_whose_result_it_is(
    tmp_path: Path, how: str, code: int, went_on: str
) -> None:
    file = tmp_path / "file"
    command = [sys.executable, "-c", WRITES.replace("{file}", str(file)), how]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        silent = subprocess.run(command, stdout=full, stderr=full)
    assert ended.returncode == silent.returncode == code
    assert (file.read_text() if file.exists() else "") == went_on * 2
    named = "writes: standard output: cannot be written (No space left on device); free disk space"
    assert ended.stderr.startswith(named) == (how == "echo") and "Traceback" not in ended.stderr


def test_a_launcher_names_its_full_output_and_a_line_of_a_run_is_left_out(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "launch.cli", "--print-config"],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("r3l-launch: standard output: cannot be written")


def test_text_of_a_model_is_no_order_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    echo("\x1b]0;owned\x07\x1b[2J hello\u202e \ud83d 題")
    assert capsys.readouterr().out == r"\x1b]0;owned\x07\x1b[2J hello\u202e \ud83d 題" + "\n"


def test_no_other_module_writes_to_the_terminal() -> None:
    root = Path(__file__).parents[4]
    rooms = [root / room for room in ("r3l", "buffer", "envs", "actors", "learner", "launch")]
    files = [file for room in rooms for file in room.rglob("*.py")]
    writing = [file.name for file in files if "click.echo(" in file.read_text(encoding="utf-8")]
    assert writing == ["command_line.py"]


def test_the_cells_of_a_table_are_aligned() -> None:
    assert columns([["", "tasks"], ["all", "2"], ["a family", "10"]]) == [
        "          tasks", "all       2", "a family  10",
    ]  # fmt: skip


def test_a_library_of_the_extras_that_is_missing_is_one_line() -> None:
    result = CliRunner().invoke(alone, ["module torch.nn"])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("alone: needs torch, which is not installed; run ")
    for other in ("module of_the_user", "module "):
        assert isinstance(CliRunner().invoke(alone, [other]).exception, ModuleNotFoundError)
