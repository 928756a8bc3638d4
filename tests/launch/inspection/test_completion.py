"""What a shell completes."""

import os
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from launch.cli import main
from launch.inspection.completion import HOW, setting_fields
from r3l.config import RunConfig, load


def completed(*words):
    """What a shell offers after these words, the last of them unfinished."""
    shell = ShellComplete(main, {}, "r3l-launch", "_R3L_LAUNCH_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_the_first_word_is_a_command_an_option_or_a_setting():
    assert completed("rep") == ["report"]
    assert completed("report", "--o") == ["--out"]
    assert "--resume" in completed("--re")
    assert "learner.lr=" in completed("learner.l")
    assert "report" not in completed("seed=1", "rep")


def test_names_are_completed():
    assert completed("--preset", "paper-g") == ["paper-gsm8k"]
    assert completed("--env", "count") == ["countdown", "countdown-steps"]
    assert completed("algorithm=re") == ["algorithm=reflect_grpo"]
    assert completed("algorithm.credit=") == ["algorithm.credit=true", "algorithm.credit=false"]
    assert completed("actor.dtype=b") == ["actor.dtype=bfloat16"]
    assert completed("learner.lr=") == []


def test_every_key_that_is_offered_is_a_setting():
    keys = {key for key, _ in setting_fields(RunConfig)}
    assert {"seed", "learner.lr", "buffer.retention.gib", "algorithm.alpha"} <= keys
    for key in ("learner.lr", "buffer.retention.gib"):
        assert load(None, [f"{key}=1"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_line_for_each_shell_makes_its_script(shell):
    assert f"_R3L_LAUNCH_COMPLETE={shell}_source" in HOW
    made = subprocess.run(
        [sys.executable, "-c", "from launch.cli import main; main(prog_name='r3l-launch')"],
        env=os.environ | {"_R3L_LAUNCH_COMPLETE": f"{shell}_source"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "_R3L_LAUNCH_COMPLETE" in made.stdout and "r3l-launch" in made.stdout
