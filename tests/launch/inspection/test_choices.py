"""The table of names that can be chosen, and presets that can be run."""

import pytest
from click.testing import CliRunner

from envs.builtin.policy import model_path
from envs.registry import ENVIRONMENTS, FAMILIES
from launch.checks import draft, of_model, presets
from launch.cli import main
from launch.inspection import choices
from r3l.algorithms.registry import REGISTRY
from r3l.records import Task

PRESETS = sorted(path.stem for path in presets.PRESETS.glob("*.yaml"))


def printed(*arguments):
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_every_name_is_in_the_table():
    text = choices.table()
    for name in (*PRESETS, *ENVIRONMENTS, *FAMILIES, *REGISTRY):
        assert name in text.replace("-\n            ", "-"), name


def test_the_table_and_the_version_are_printed_and_nothing_is_started(run):
    assert printed("--list", "--run", str(run)) == choices.table() + "\n"
    assert printed("--version", "--run", str(run)).startswith("r3l ")
    assert not run.exists()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_makes_a_plan_and_starts_nothing(name, run, monkeypatch):
    """Without its environment's packages and data, which `--check` asks for."""
    monkeypatch.setattr(draft, "tasks_of_all", lambda env, *_: [Task(f"{env.name}/0", env.name, 0)])
    monkeypatch.setattr(of_model, "try_tasks", lambda env, tasks, chat: [10] * len(tasks))
    model = str(model_path("builtin"))
    arguments = ["--run", str(run), "--preset", name, "--model", model]
    assert printed(*arguments, "--check").splitlines()[-1].startswith("nothing is missing: ")
    assert f"model: {model}" in printed(*arguments, "--print-config")
    assert not run.exists()
