"""Lists of what can be chosen, and presets that can be run."""

import re

import pytest
from click.testing import CliRunner

from envs.builtin.policy import model_path
from envs.registry import ENVIRONMENTS, FAMILIES
from launch import plan
from launch.cli import main
from launch.inspection import listings
from r3l.algorithms.registry import REGISTRY
from r3l.records import Task

PRESETS = sorted(path.stem for path in plan.PRESETS.glob("*.yaml"))


def printed(*arguments):
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def names(text):
    return [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]


def test_everything_that_can_be_chosen_is_listed_with_what_it_is():
    assert names(printed("--list-presets")) == PRESETS
    assert names(printed("--list-algorithms")) == list(REGISTRY)
    families = [f"{family}:NAME" for family in FAMILIES]
    assert names(printed("--list-envs")) == [*ENVIRONMENTS, *families, "file.py:Class"]
    for maker in (listings.preset_lines, listings.environment_lines, listings.algorithm_lines):
        for name, what in maker():
            assert len(what) > 15, name


def test_a_first_sentence_ends_where_the_next_begins():
    first = listings._first_sentence
    assert first("Problems (Cobbe et al. 2021): many. They\nare short.") == (
        "Problems (Cobbe et al. 2021): many"
    )
    assert first("A row of\nlocks.\n\nMore.") == "A row of locks"
    assert first("A world:\n\n    of words") == "A world" and first(None) == ""


def test_the_version_is_printed_and_nothing_is_started(run):
    assert re.match(r"r3l \d+\.\d+\.\d+.*, Python 3\.\d+", printed("--version", "--run", str(run)))
    assert "bash_source" in printed("--completion") and not run.exists()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_makes_a_plan_and_starts_nothing(name, run, monkeypatch):
    """Without its environment's packages and data, which `--check` asks for."""
    monkeypatch.setattr(plan, "tasks_of_all", lambda env, *_: [Task(f"{env.name}/0", env.name, 0)])
    monkeypatch.setattr(plan, "try_tasks", lambda env, tasks, chat: [10] * len(tasks))
    model = str(model_path("builtin"))
    arguments = ["--run", str(run), "--preset", name, "--model", model]
    assert printed(*arguments, "--check").splitlines()[-1].startswith("nothing is missing: ")
    assert f"model: {model}" in printed(*arguments, "--print-config")
    assert not run.exists()
