"""`r3l-agent check` plays an agent without a model."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from actors.agent_cli import main
from tests.r3l.rollout.test_agent_chat import QWEN

AGENT = """
import sys
sys.path.insert(0, {folder!r})
from stdlib_agent import ask


def play(task):
    ask([{{"role": "user", "content": task["question"]}}])
    if task["question"] == "why":
        raise ValueError("no luck")
    return 1.0
"""


def checked(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments])


@pytest.fixture
def agent(tmp_path: Path) -> list[str]:
    """The arguments that check an agent; its tasks ask `how` and `why`."""
    folder = Path(__file__).parent / "agents"
    (tmp_path / "mine.py").write_text(AGENT.format(folder=str(folder)))
    lines = [
        json.dumps({"id": word, "split": "train", "question": word}) for word in ("how", "why")
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    options = {"command": f"{tmp_path}/mine.py:play", "tasks": f"{tmp_path}/tasks.jsonl"}
    settings = {"env": {"name": "agent", "options": options}, "algorithm": "grpo"}
    (tmp_path / "agent.yaml").write_text(json.dumps(settings))
    return [str(tmp_path / "agent.yaml"), "actor.max_response_tokens=500"]


def test_each_task_is_a_line_and_a_failure_ends_the_command_with_2(
    agent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.actors.gateway.test_real_clients import Vocabulary

    monkeypatch.setattr("actors.agent_cli.read_tokenizer", lambda *_: Vocabulary(QWEN))
    done = checked(*agent)
    assert done.exit_code == 2 and not done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("note: ")]
    passed, failed = sorted(lines, key=lambda line: "failed" in line)
    assert passed.startswith("task how: 1 calls") and "reward 1" in passed
    assert failed.startswith("task why: 1 calls") and "ValueError: no luck" in failed


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (["--model", "FILE", "seed=1"], ""),
        (["FILE", "--model"], ""),
        (["FILE", "--model", "seed=1"], ""),
        (["--model", "mine", "FILE"], "mine"),
        (["FILE", "seed=1", "--model=mine"], "mine"),
    ],
)
def test_the_option_model_has_a_name_or_takes_the_runs(
    agent: list[str], words: list[str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lines(config: Any) -> Any:
        yield f"played by {config.model}", True

    monkeypatch.setattr("actors.agents.check_with_model.check_with_model", lines)
    done = checked(*(agent[0] if word == "FILE" else word for word in words))
    assert (done.exit_code, done.stdout) == (0, f"played by {model or 'builtin'}\n"), done.output


def test_a_model_that_is_missing_is_one_line(agent: list[str]) -> None:
    done = checked(*agent, "--model", "/nowhere/at all")
    assert done.exit_code == 2 and not done.stdout
    assert done.stderr.startswith("r3l-agent: ") and done.stderr.count("\n") == 1


def test_a_broken_task_is_named_before_anything_is_loaded(
    agent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.agent_cli.read_tokenizer", lambda *_: pytest.fail("it was read"))
    (tmp_path / "tasks.jsonl").write_text('{"id": 1}\n{"id": 2,}')
    done = checked(*agent)
    assert done.exit_code == 2 and not done.stdout and done.stderr.count("\n") == 1
    assert "tasks.jsonl, line 2: must be a JSON object" in done.stderr


def test_what_is_no_agent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("env: workshop\n")
    done = checked(str(tmp_path / "run.yaml"))
    assert done.exit_code == 2
    said = "r3l-agent: env workshop: is not an agent; use r3l-env check NAME\n"
    assert done.stderr == said
    assert checked().exit_code == 2


def test_faulty_options_are_refused_before_the_model_is_read(
    agent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.agent_cli.read_tokenizer", lambda *_: pytest.fail("was read"))
    done = checked(*agent, "env.options.command=nosuch.py:play")
    assert done.exit_code == 2 and "nosuch.py" in done.stderr
