"""r3l-launch: commands, options, overrides and prompts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import r3l
from envs.preflight import FirstStep
from launch.checks import notes, of_tasks, presets
from launch.cli import DEFAULT, INSPECTIONS, main
from r3l.models.model_path import model_path
from r3l.records import Task
from r3l.run.config import load
from tests.launch.fakes import refused


def test_prompts_are_shown_with_the_overrides_of_the_environment(run: Path) -> None:
    result = CliRunner().invoke(main, ["--run", run, "--show-prompts"])
    assert result.exit_code == 0 and not run.exists()
    assert "--- guidance\nadvice: {report}" in result.output
    assert "--- advice\nadvice: {improvement_suggestion}." in result.output
    assert "--- system\nEach item needs one tool" in result.output


def test_ctrl_c_while_a_run_is_checked_says_that_nothing_was_started(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("launch.preparation.prepare", interrupted)
    result = CliRunner().invoke(main, ["--run", str(run)])
    assert (result.exit_code, run.exists()) == (130, False)
    assert result.stderr.startswith("r3l-launch: interrupted; ") and result.stderr.count("\n") == 1


def test_every_setting_is_printed_as_yaml_that_makes_the_same_run(
    run: Path, tmp_path: Path
) -> None:
    arguments = ["--run", str(run), "--print-config", "--steps", "3", "algorithm=grpo"]
    printed = CliRunner().invoke(main, arguments)
    assert printed.exit_code == 0 and not run.exists()
    file = tmp_path / "config.yaml"
    file.write_text(printed.output)
    config = load(file)
    assert (config.learner.steps, config.algorithm.name, config.learner.lr) == (3, "grpo", 2e-4)
    again = CliRunner().invoke(main, ["--print-config", "--config", str(file), "algorithm=r3l"])
    assert "alpha: 3.0" in again.output and "lr: 0.0002" in again.output


def test_what_is_wrong_is_named_by_the_option_that_was_typed(run: Path) -> None:
    line = refused("--run", run, "--steps", "-1")
    assert line.startswith("r3l-launch: --steps -1: ") and "at least 0" in line
    assert "config learner.steps: " in refused("--run", run, "learner.steps=-1")
    assert "config learner.steps: " in refused("--run", run, "--steps", "2", "learner.steps=-1")
    assert "--seed -1: must be" in refused("--run", run, "--seed", "-1")
    assert "--env 'worshop': unknown" in refused("--env", "worshop")
    assert "r3l-launch: env 'worshop'" in refused("env=worshop")
    line = refused("--env", "workshop", "env.others={worshop: {}}")
    assert "r3l-launch: env 'worshop': unknown" in line
    assert "--env door.py: names no class" in refused("--env", "door.py")
    assert "--model /none: no config.json" in refused("--run", run, "--model", "/none")
    assert "r3l-launch: model /none: no config.json" in refused("--run", run, "model=/none")
    assert "(did you mean paper-alfworld?)" in refused("--preset", "paper-alfword")
    assert "(did you mean prioritised?)" in refused("buffer.sampler=prioritized")
    assert not run.exists()


def test_training_from_python_is_checked_like_the_command_line(run: Path) -> None:
    with pytest.raises(r3l.UserError, match=r"learner\.speed: unknown"):
        r3l.train({"learner.speed": 9}, run=str(run))
    with pytest.raises(r3l.UserError, match=r"learner\.groups_per_step is 1"):
        r3l.train({"learner": {"groups_per_step": 1}}, run=str(run), learner="2cpu")
    assert not run.exists()


PRESETS = sorted(path.stem for path in presets.PRESETS.glob("*.yaml"))


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_the_version_is_printed_and_nothing_is_started(run: Path) -> None:
    assert printed("--version", "--run", str(run)).startswith("r3l ")
    assert not run.exists()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_makes_a_plan_and_starts_nothing(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its environment's packages and data, which `--check` asks for."""
    for module in (of_tasks, notes):
        monkeypatch.setattr(
            module, "tasks_of_all", lambda env, *_: [Task(f"{env.name}/0", env.name, 0)]
        )
    step = FirstStep(10, 20, 30)
    monkeypatch.setattr(of_tasks, "try_tasks", lambda env, tasks, chat: [step] * len(tasks))
    model = str(model_path("builtin"))
    arguments = ["--run", str(run), "--preset", name, "--model", model]
    assert printed(*arguments, "--check").splitlines()[-1].startswith("all checks passed: ")
    assert f"model: {model}" in printed(*arguments, "--print-config")
    assert not run.exists()


def test_every_command_is_there_and_named_in_the_help_of_the_default_one() -> None:
    listed = CliRunner().invoke(main, ["--help"]).output
    assert listed == CliRunner().invoke(main, [DEFAULT, "--help"]).output
    for name in INSPECTIONS:
        assert name in listed.split("Commands, ")[1]
        told = CliRunner().invoke(main, [name, "--help"])
        assert told.exit_code == 0 and f"{name} [OPTIONS]" in told.output


def test_options_and_settings_are_those_of_the_default_command(run: Path) -> None:
    assert "'status'" in refused("--run", run, "seed=1", "status")
    assert "learner.speed" in refused("learner.speed=1")
    assert "learner.speed" in refused(DEFAULT, "learner.speed=1")


def test_a_word_that_is_neither_a_command_nor_a_setting_is_refused() -> None:
    line = refused("doctors")
    assert line.startswith("r3l-launch: 'doctors'") and "doctor" in line.partition("(")[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_clicks_completion_knows_the_options(shell: str) -> None:
    completion = ShellComplete(main, {}, "r3l-launch", "_R3L_LAUNCH_COMPLETE")
    assert "--resume" in [item.value for item in completion.get_completions([], "--re")]
    assert [item.value for item in completion.get_completions(["status"], "--j")] == ["--json"]
    made = subprocess.run(
        [sys.executable, "-c", "from launch.cli import main; main(prog_name='r3l-launch')"],
        env=os.environ | {"_R3L_LAUNCH_COMPLETE": f"{shell}_source"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "_R3L_LAUNCH_COMPLETE" in made.stdout and "r3l-launch" in made.stdout
