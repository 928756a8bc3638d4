"""The other commands of r3l-launch."""

from click.testing import CliRunner

from launch.cli import main
from launch.inspection.subcommands import COMMANDS, _command
from tests.launch.fakes import refused


def test_every_command_is_there_and_listed_with_its_help():
    listed = CliRunner().invoke(main, ["--help"]).output
    for name in COMMANDS:
        assert _command(name).name == name and f"{main.name} {name} " in listed
        told = CliRunner().invoke(main, [name, "--help"])
        assert told.exit_code == 0 and f"{name} [OPTIONS]" in told.output


def test_settings_are_never_taken_for_a_command(run):
    assert "override 'reports'" in refused("--run", run, "reports")
    assert "'report'" in refused("--run", run, "seed=1", "report")
