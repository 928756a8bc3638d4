"""`r3l-env check` says in one line that an environment passes, or what is wrong with it."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from envs.cli import main

GUESS = """
from r3l.rollout.env_interface import EnvSpec

class Guess:
    spec = EnvSpec("guess", "Say the word.", max_steps=2)
    def __init__(self, word="oak"): self.word = word
    def reset(self, *, seed, options=None): return "which word?", {}
    def step(self, action):
        right = action == self.word
        return "Yes." if right else "No.", float(right), right, False, {}
    def demonstration(self): return ["oak"]
    def close(self): ...
"""


@pytest.fixture
def guess(tmp_path: Path) -> str:
    (tmp_path / "guess.py").write_text(GUESS)
    return f"{tmp_path / 'guess.py'}:Guess"


def checked(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments])


def test_an_environment_that_passes_is_one_line(guess: str) -> None:
    done = checked(guess)
    assert done.exit_code == 0 and not done.stderr
    assert done.stdout == f"{guess}: passes at seeds 0, 1 and 2; its demonstrations succeed\n"


def test_what_is_wrong_is_one_line(guess: str) -> None:
    wrong = {
        (guess, "word=elm"): f"{guess}: seed 0, step 0: the demonstration earns 0.0 of 1.0",
        (guess, "word"): "word: must be an option of the environment, OPTION=VALUE",
        (guess, "words=9"): "knows word; options are parameters of its __init__: add words there",
        (f"{guess}s",): "guess.py defines no class 'Guesss'",
        ("agent",): "agent: is an agent; use r3l-agent check YAML",
        (): "Missing argument 'NAME'. Try 'r3l-env check --help'.",
    }
    for arguments, line in wrong.items():
        done = checked(*arguments)
        assert done.exit_code == 2 and not done.stdout
        assert done.stderr.startswith("r3l-env: ") and line in done.stderr
        assert done.stderr.count("\n") == 1


def test_what_the_users_code_raises_is_named_with_its_file_and_line(tmp_path: Path) -> None:
    broken = GUESS.replace("right = action == self.word", "right = {}[action]")
    (tmp_path / "broken.py").write_text(broken)
    line = broken[: broken.index("{}[action]")].count("\n") + 1
    done = checked(f"{tmp_path / 'broken.py'}:Guess")
    assert "seed 0, step 0: raised KeyError: " in done.stderr
    assert done.stderr.endswith(f" ({tmp_path / 'broken.py'}:{line})\n")


def test_a_task_source_that_returns_something_else_is_one_line(tmp_path: Path) -> None:
    returned = {"[]": "its task_source returned []; return an envs.ListedTasks",
                "ListedTasks({'train': [{}]})": "an object that is not an envs.Task"}  # fmt: skip
    for number, (source, line) in enumerate(returned.items()):
        file = tmp_path / f"listed{number}.py"
        method = f"    task_source = staticmethod(lambda **_: {source})\n"
        file.write_text(f"from envs import ListedTasks\n{GUESS}{method}")
        done = checked(f"{file}:Guess")
        assert done.exit_code == 2 and done.stderr.count("\n") == 1 and line in done.stderr
