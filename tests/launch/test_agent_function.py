"""A function is trained from Python: what becomes of it, and which functions are refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launch.agent_function import TASKS, agent_settings
from launch.cli import train
from r3l.errors import UserError
from r3l.run.config import load
from r3l.run.files.run_folder import RunFolder, run_folder

ROOT = Path(__file__).parents[2]


async def play(task: dict[str, object]) -> float:
    return 1.0


def test_functions_and_tasks_become_settings(tmp_path: Path) -> None:
    settings = agent_settings(play, [{"id": 1}, {"id": 2}], play, tmp_path / "run")
    options, tasks = settings["env.options"], tmp_path / "run" / "tasks.jsonl"
    assert settings["env.name"] == "agent"
    assert options == dict.fromkeys(("command", "reward"), f"{__file__}:play") | {
        "tasks": str(tasks)
    }
    assert [json.loads(line) for line in tasks.read_text().splitlines()] == [{"id": 1}, {"id": 2}]
    named = agent_settings("python mine.py", "tasks.jsonl", None, tmp_path / "other")
    assert named["env.options"] == {"command": "python mine.py", "tasks": "tasks.jsonl"}
    assert not (tmp_path / "other").exists()


def test_a_refused_run_leaves_no_file_and_an_existing_run_keeps_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="lerner"):
        train({"lerner.lr": 1}, agent=play, tasks=[{"id": 1}], reward=play, run="sums")
    assert not list(tmp_path.iterdir())
    run = run_folder("sums")
    run.mkdir(parents=True)
    RunFolder(run).write_settings(load())
    (run / TASKS).write_text('{"id": 1}\n')
    with pytest.raises(UserError, match="exists; add --resume"):
        train({}, agent=play, tasks=[{"id": 2}], reward=play, run="sums")
    with pytest.raises(UserError, match="differ from this run's tasks"):
        train({}, agent=play, tasks=[{"id": 2}], reward=play, run="sums", resume=True)
    assert (run / TASKS).read_text() == '{"id": 1}\n'


@pytest.mark.parametrize("function", [lambda task: 1.0, "x".join, print])
def test_a_function_that_no_actor_can_import_is_refused(function: object, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"agent .*(top level|notebook)"):
        agent_settings(function, [{"id": 1}], None, tmp_path)  # type: ignore[arg-type]


def test_a_prompt_and_a_file_that_trains_itself_when_imported_get_one_line(tmp_path: Path) -> None:
    train = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + (
        "import r3l\ndef play(task): return 1.0\n"
        "r3l.train({'algorithm': 'grpo'}, agent=play, tasks=[{'id': 1}], run='mine')\n"
    )

    def last_line(*given: str) -> str:
        ran = subprocess.run(
            [sys.executable, *given], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        return ran.stderr.strip().rpartition("\n")[2]

    line = last_line("-c", train)
    assert "agent play: " in line and "notebook" in line
    (tmp_path / "mine.py").write_text(train)
    assert "under `if __name__" in last_line("mine.py")
