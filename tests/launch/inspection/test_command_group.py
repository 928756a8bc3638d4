"""The commands of r3l-launch."""

import os
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from launch.cli import main
from launch.inspection.command_group import DEFAULT, INSPECTIONS
from tests.launch.fakes import refused


def test_every_command_is_there_and_named_in_the_help_of_the_default_one():
    listed = CliRunner().invoke(main, ["--help"]).output
    assert listed == CliRunner().invoke(main, [DEFAULT, "--help"]).output
    for name in INSPECTIONS:
        assert name in listed.split("Commands, ")[1]
        told = CliRunner().invoke(main, [name, "--help"])
        assert told.exit_code == 0 and f"{name} [OPTIONS]" in told.output


def test_options_and_settings_are_those_of_the_default_command(run):
    assert "'report'" in refused("--run", run, "seed=1", "report")
    assert "learner.speed" in refused("learner.speed=1")
    assert "learner.speed" in refused(DEFAULT, "learner.speed=1")


def test_a_word_that_is_neither_a_command_nor_a_setting_is_refused():
    line = refused("reports")
    assert line.startswith("r3l-launch: 'reports'") and "report" in line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_clicks_completion_knows_the_options(shell):
    completion = ShellComplete(main, {}, "r3l-launch", "_R3L_LAUNCH_COMPLETE")
    assert "--resume" in [item.value for item in completion.get_completions([], "--re")]
    assert [item.value for item in completion.get_completions(["report"], "--o")] == ["--out"]
    made = subprocess.run(
        [sys.executable, "-c", "from launch.cli import main; main(prog_name='r3l-launch')"],
        env=os.environ | {"_R3L_LAUNCH_COMPLETE": f"{shell}_source"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "_R3L_LAUNCH_COMPLETE" in made.stdout and "r3l-launch" in made.stdout
