"""Task folders are checked by their own solutions, without a model."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from actors.agent_cli import main
from actors.agents.check_solutions import check_solutions
from r3l.errors import UserError
from r3l.run.config import RunConfig, load
from tests.actors.agents.test_agent_attempt import config_of, play
from tests.envs.agents.task_folders.folders import TEST, made
from tests.envs.agents.task_folders.test_private_view import pytestmark as needs_views


def config(folder: Path, *more: str) -> RunConfig:
    options = {"command": "true", "tasks": str(folder), "unsandboxed": True}
    given = ["env=agent", f"env.options={json.dumps(options)}", "env.isolation=none", *more]
    return load(None, [*given, "algorithm=grpo"])


def checked(folder: Path, *more: str) -> dict[str, bool]:
    async def check() -> dict[str, bool]:
        return {line: passed async for line, passed in check_solutions(config(folder, *more))}

    return asyncio.run(check())


@needs_views
def test_each_task_is_a_line_and_a_wrong_one_fails(tmp_path: Path) -> None:
    made(tmp_path, "right")
    made(tmp_path, "wrong", solution="echo 0.5 > answer\n")
    made(tmp_path, "pays", test=TEST.replace("echo 0", "echo 1"), solution=None)
    made(tmp_path, "broken", test="exit 2\n")
    made(tmp_path, "slow", solution="sleep 60\n", toml="[agent]\ntimeout_sec = 0.5\n")
    broken, pays, right, slow, wrong = checked(tmp_path).items()
    assert right == ("task right: its solution earns 1, an untouched folder earns 0", True)
    assert wrong[0].startswith("task wrong: its solution earns 0.5, but should earn 1,")
    assert "it has no solution, an untouched folder earns 1, but should earn 0" in pays[0]
    assert "its solution and an untouched folder failed (tests_exit): " in broken[0]
    assert broken[0].count("exit code 2") == 1
    assert "its solution failed (agent_timeout): it took longer than 0.5 s" in slow[0]
    assert not any(passed for _, passed in (broken, pays, slow, wrong))


@needs_views
def test_tests_may_take_longer_than_an_agent(tmp_path: Path) -> None:
    made(tmp_path, test=f"if [ -e answer ]; then sleep 6; fi\n{TEST}")
    (said,) = checked(tmp_path, "actor.agent.timeout_s=5")
    assert said == "task task: its solution earns 1, an untouched folder earns 0"


def test_other_tasks_have_no_solutions(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(UserError, match=r"--oracle: needs env.options.tasks=FOLDER"):
        checked(tmp_path / "tasks.jsonl")


def test_solutions_on_this_machine_need_the_users_word_too(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(
        UserError, match=r"would run as your user.*allow that with unsandboxed=true"
    ):
        checked(tmp_path, "env.options.unsandboxed=false")


@needs_views
def test_the_command_ends_with_2_if_a_solution_is_wrong(tmp_path: Path) -> None:
    made(tmp_path / "tasks", solution="true\n")
    file = tmp_path / "agent.yaml"
    file.write_text(config(tmp_path / "tasks").model_dump_json())
    done = CliRunner().invoke(main, ["check", str(file), "--oracle"])
    assert done.exit_code == 2 and "earns 0, but should earn 1" in done.stdout, done.output
    done = CliRunner().invoke(main, ["check", str(file), "--oracle", "--model", "builtin"])
    assert done.exit_code == 2 and "--oracle uses no model" in done.output


ASKS = """
import os, sys, time
sys.path.insert(0, {folder!r})
from stdlib_agent import ask

def work(task):
    ask([{{"role": "user", "content": task["instruction"]}}])
    open("answer", "w").write("1")
    time.sleep({sleeps})
"""


@needs_views
@pytest.mark.parametrize(("sleeps", "cause"), [(0, ""), (60, "agent_timeout")])
def test_an_attempt_is_paid_by_the_tests_within_the_tasks_time_limit(
    tmp_path: Path, sleeps: int, cause: str
) -> None:
    made(tmp_path / "tasks", toml="[agent]\ntimeout_sec = 6\n")
    script = ASKS.format(folder=str(Path(__file__).parent), sleeps=sleeps)
    (tmp_path / "mine.py").write_text(script)
    given = {"command": f"{tmp_path}/mine.py:work", "tasks": str(tmp_path / "tasks")}
    more = "env.options.unsandboxed=true", "env.isolation=none"
    (result,), _ = play(config_of(tmp_path, "", *more, **given))
    assert (result.cause or "") == cause
    if not cause:
        assert result.trajectory is not None and result.trajectory.reward == 1.0
