"""The environment of an agent: a folder, a process and its end."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from envs.agents.agent import Agent
from envs.agents.agent_runner import MAIN, AgentFacts, ProcessState
from r3l.errors import UserError


def made(folder: Path, script: str, **options: str) -> Agent:
    (folder / "agent.py").write_text(script)
    (folder / "tasks.jsonl").write_text('{"id": "a", "split": "train"}\n')
    return Agent(
        command=f"python {folder / 'agent.py'}", tasks=str(folder / "tasks.jsonl"), **options
    )


def ended(env: Agent, state: ProcessState) -> ProcessState:
    deadline = time.monotonic() + 120
    while state.exit is None and time.monotonic() < deadline:
        time.sleep(0.02)
        state = env.processes[MAIN].state()
    return env.stop(MAIN)


def test_a_process_runs_in_a_folder_of_its_own_with_the_task_and_the_variables(
    tmp_path: Path,
) -> None:
    script = "import os, sys\nprint(os.getcwd(), os.environ['R3L_TASK'], os.environ['X'])\n"
    env = made(tmp_path, script + "print(end='\\n\\n')\nsys.exit('bad')")
    assert env.prepare({"id": "a"}, []) == AgentFacts(graded=False, saved="folder", servers={})
    assert env.folder is not None
    state = ended(env, env.start({"X": "y"}))
    assert (state.exit, state.stderr) == (1, "bad")
    assert state.stdout == f'{env.folder}/work {{"id": "a"}} y'
    folder = env.folder
    env.close()
    assert not folder.exists()


@pytest.mark.parametrize(("size", "by_a_process"), [(1, False), (2 << 20, True)])
def test_only_a_large_folder_is_copied_by_a_process(
    tmp_path: Path, size: int, by_a_process: bool
) -> None:
    env = made(tmp_path, "")
    env.prepare({"id": "a"}, [])
    assert env.folder is not None
    (env.folder / "work" / "data").write_bytes(bytes(size))
    kept = tmp_path / "kept"
    first = env.keep("save", str(kept), 0)
    assert bool(first.pid) == by_a_process
    deadline = time.monotonic() + 120
    while not (kept / "0.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (kept / "0.json").exists()
    if not by_a_process:
        assert first.exit == 0 and json.loads(first.stdout)["bytes"] > size
        (env.folder / "work" / "data").unlink()
        put_back = env.keep("restore", str(kept), 0)
        assert put_back.exit == 0 and (env.folder / "work" / "data").stat().st_size == size
        (kept / "1.json").mkdir()  # it cannot be written
        failed = env.keep("save", str(kept), 1)
        assert failed.exit == 1 and "1.json" in failed.stderr
    env.close()


def test_no_process_of_an_attempt_gets_a_secret_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPT_KEY", "theirs")
    file = tmp_path / "own.py"
    file.write_text(
        "import os\n"
        "def seen(*given):\n"
        "    return [name in os.environ or name in open('/proc/self/environ').read()\n"
        "            for name in ('GPT_KEY', 'PATH')]\n"
    )
    env = Agent(command=f"{file}:seen", reward=f"{file}:seen", tasks=str(file))
    assert env.prepare({}, ["GPT_KEY"]).graded
    assert ended(env, env.start({})).stdout == "[false, true]"
    assert ended(env, env.grade([])).stdout == "[false, true]"
    env.close()


def test_fields_of_the_task_fill_the_command(tmp_path: Path) -> None:
    env = made(tmp_path, "import json, sys\nprint(json.dumps(sys.argv[1:]))")
    env.argv += ("{question}", "--n={n}", "{other}", "{}")
    env.prepare({"question": "it's $(3) words", "n": [1, "é"]}, [])
    assert json.loads(ended(env, env.start({})).stdout) == [
        *("it's $(3) words", '--n=[1, "é"]', "{other}", "{}")
    ]
    env.close()


def test_the_last_lines_are_there_while_the_process_runs(tmp_path: Path) -> None:
    env = made(tmp_path, "import time\nprint(0.5, flush=True)\ntime.sleep(600)\n")
    env.prepare({}, [])
    state = env.start({})
    deadline = time.monotonic() + 120
    while not state.stdout and time.monotonic() < deadline:
        time.sleep(0.02)
        state = env.processes[MAIN].state()
    assert (state.exit, state.stdout, state.stderr) == (None, "0.5", "")
    env.close()


def test_a_task_that_is_too_long_for_a_variable_is_left_out(tmp_path: Path) -> None:
    env = made(tmp_path, "import os\nprint(len(os.environ.get('R3L_TASK', '')))\n")
    for text, length in (("題" * 30_000, 30_000), ("題" * 60_000, 0)):
        env.prepare({"q": text}, [])
        state = ended(env, env.start({}))
        assert state.exit == 0 and length <= int(state.stdout) <= length + 20
    env.close()


def test_a_folder_is_copied_for_each_attempt(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "note.txt").write_text("hello")
    env = made(tmp_path, "print(open('note.txt').read())", workspace=str(tmp_path / "files"))
    env.prepare({}, [])
    assert ended(env, env.start({})).stdout == "hello"
    env.close()
    with pytest.raises(UserError, match=r"workspace .* is not a folder"):
        made(tmp_path, "", workspace=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("snapshot", "saved"), [("", "folder"), ("none", "nothing"), ("workspace", "all")]
)
def test_what_is_saved_and_served_are_facts_of_an_attempt(
    tmp_path: Path, snapshot: str, saved: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/mcp"
        mcp: Any = {"here": "true", "there": url}
        env = made(tmp_path, "", snapshot=snapshot, mcp=mcp)
    assert env.prepare({}, []) == AgentFacts(saved=saved, servers={"here": "", "there": url})
    env.close()


def test_a_grader_of_a_stored_attempt_gets_no_folder(tmp_path: Path) -> None:
    """Neither that of the attempt, which is gone, nor a new copy, which is not the attempt's."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("1")
    (tmp_path / "grade.py").write_text(
        "import os\ndef grade(*given):\n    return [len(given), os.listdir()]\n"
    )
    reward, workspace = f"{tmp_path}/grade.py:grade", str(tmp_path / "data")
    env = made(tmp_path, "", reward=reward, workspace=workspace)
    for stored, found in ((False, [3, ["file"]]), (True, [2, []])):
        env.prepare({"id": "a"}, [], stored)
        assert json.loads(ended(env, env.grade([])).stdout) == found
    env.close()
