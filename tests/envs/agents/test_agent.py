"""The environment of an agent: a folder, a process and its end."""

import contextlib
import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from envs.agents.agent import LONGEST_ARGUMENT, Agent
from envs.agents.agent_runner import MAIN, AgentFacts, ProcessState
from r3l.errors import EnvironmentFailed, UserError


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
    facts = AgentFacts(graded=False, saved="folder", servers={}, task={"id": "a"})
    assert env.prepare({"id": "a"}, []) == facts
    assert env.place is not None
    state = ended(env, env.start({"X": "y"}))
    assert (state.exit, state.stderr) == (1, "bad")
    assert state.stdout == f'{env.place.path}/work {{"id": "a"}} y'
    folder = env.place.path
    env.close()
    assert not folder.exists()


CACHING = """
import json, os
from pathlib import Path

kept = [Path(os.environ[name]) for name in ("XDG_CACHE_HOME", "DSPY_CACHEDIR")]
print(json.dumps([*map(str, kept), os.environ["HF_HOME"], [os.listdir(each) for each in kept]]))
for each in kept:
    (each / "replies").touch()
"""


def test_each_attempt_has_empty_folders_for_caches_and_the_users_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DSPY_CACHEDIR", str(tmp_path))
    monkeypatch.delenv("HF_HOME", raising=False)
    env, seen = made(tmp_path, CACHING), set[str]()
    for _ in range(2):
        env.prepare({"id": "a"}, [])
        state = ended(env, env.start({}, ["XDG_CACHE_HOME", "DSPY_CACHEDIR"]))
        *folders, downloads, listed = json.loads(state.stdout)
        assert downloads == f"{tmp_path}/huggingface" and listed == [[], []]
        seen |= {*folders}
    env.close()
    assert len(seen) == 4 and not any(map(os.path.exists, seen))


def test_a_functions_file_is_imported_with_the_users_caches_and_called_with_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HOME", raising=False)
    (tmp_path / "mine.py").write_text(
        "import os\n\ndef seen():\n"
        "    return [os.environ['XDG_CACHE_HOME'], os.environ.get('HF_HOME')]\n\n"
        "FIRST = seen()\n\ndef play(task):\n    return FIRST + seen()\n"
    )
    env = Agent(command=f"{tmp_path}/mine.py:play", tasks="")
    env.prepare({"id": "a"}, [])
    state = ended(env, env.start({}, ["XDG_CACHE_HOME"]))
    first, downloads, own, still = json.loads(state.stdout)
    env.close()
    assert first == str(tmp_path) != own
    assert downloads == still == f"{tmp_path}/huggingface"


def test_a_functions_file_is_imported_with_the_path_of_programs(tmp_path: Path) -> None:
    text = "import os\n\nFIRST = os.environ['PATH']\n\ndef play(task):\n    return [FIRST]\n"
    (tmp_path / "mine.py").write_text(text)
    env = Agent(command=f"{tmp_path}/mine.py:play", tasks="")
    env.prepare({"id": "a"}, [])
    state = ended(env, env.start({}))
    env.close()
    assert os.environ["PATH"] in json.loads(state.stdout)[0]


@pytest.mark.parametrize(("size", "by_a_process"), [(1, False), (2 << 20, True)])
def test_only_a_large_folder_is_copied_by_a_process(
    tmp_path: Path, size: int, by_a_process: bool
) -> None:
    env = made(tmp_path, "")
    env.prepare({"id": "a"}, [])
    assert env.place is not None
    (env.place.path / "work" / "data").write_bytes(bytes(size))
    kept = tmp_path / "kept"
    first = env.keep("save", str(kept), 0)
    assert bool(first.pid) == by_a_process
    deadline = time.monotonic() + 120
    while not (kept / "0.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (kept / "0.json").exists()
    if not by_a_process:
        assert first.exit == 0 and json.loads(first.stdout)["bytes"] > size
        (env.place.path / "work" / "data").unlink()
        put_back = env.keep("restore", str(kept), 0)
        assert put_back.exit == 0 and (env.place.path / "work" / "data").stat().st_size == size
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


@pytest.mark.parametrize(
    ("options", "task", "shown"),
    [
        ({}, {"answer": 1, "solution": 2, "numbers": [4]}, {"numbers": [4]}),
        ({"hidden": []}, {"tests": ["x"], "target": 24}, {"tests": ["x"], "target": 24}),
        ({"hidden": ["TESTS"]}, {"tests": ["x"], "target": 24}, {"target": 24}),
        ({"hidden": []}, {"answer": 1}, {"answer": 1}),
        ({"hidden": ["key", "info.key"]}, {"key": 1, "answer": 1}, {"answer": 1}),
        ({"hidden": ["info.key"]}, {"info": {"key": 1, "x": 2}}, {"info": {"x": 2}}),
        ({"hidden": ["info.key"]}, {"info": [1]}, {"info": [1]}),
        ({"reward": ""}, {"answer": 1}, {"answer": 1}),
    ],
)
def test_only_the_grader_sees_hidden_fields(
    tmp_path: Path, options: dict[str, Any], task: dict[str, Any], shown: dict[str, Any]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import json, os\ndef seen(task, *others):\n"
        "    return [task, json.loads(os.environ['R3L_TASK'])]\n"
    )
    function = f"{file}:seen"
    env = Agent(**{"command": function, "reward": function, "tasks": str(file)} | options)
    facts = env.prepare(task, [])
    assert facts.task == shown and bool(facts.hidden) == (task != shown)
    assert json.loads(ended(env, env.start({})).stdout) == [shown, shown]
    if env.grader:
        assert json.loads(ended(env, env.grade([])).stdout) == [task, task]
    env.close()


def test_a_command_with_a_hidden_field_is_refused(tmp_path: Path) -> None:
    (tmp_path / "grade.py").write_text("def grade(*given):\n    return 0\n")
    options: Any = {"tasks": "x", "reward": f"{tmp_path}/grade.py:grade"}
    with pytest.raises(UserError, match=r"command has \{answer\}, which only the grader sees"):
        Agent(command="true {question} {answer}", **options)
    Agent(command="true {question} {answer}", hidden=[], **options)
    with pytest.raises(UserError, match="hidden 'answer': must be a list"):
        Agent(command="true", hidden="answer", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x" * (LONGEST_ARGUMENT + 1), r"has 131072 bytes, more than the 131071"),
        ("é" * (LONGEST_ARGUMENT // 2 + 1), r"has 131072 bytes"),
        ("a\0b", "holds a NUL"),
    ],
)
def test_an_argument_that_no_program_takes_fails_the_attempt(
    tmp_path: Path, text: str, why: str
) -> None:
    env = made(tmp_path, "import sys\nprint(len(sys.argv[1].encode()))")
    env.argv += ("{question}",)
    env.prepare({"question": text}, [])
    with pytest.raises(EnvironmentFailed, match=f"the argument '{{question}}' {why}") as failed:
        env.start({})
    assert failed.value.cause == "argument_too_long"
    env.prepare({"question": "x" * LONGEST_ARGUMENT}, [])
    assert ended(env, env.start({})).stdout == str(LONGEST_ARGUMENT)
    env.close()


def test_the_agents_family_and_its_servers_have_ended_when_the_grader_begins(
    tmp_path: Path,
) -> None:
    """A shell's background job, or a tool's, would change what is graded."""
    writer = "import time\nwhile True:\n    open('late', 'a').write('x')\n    time.sleep(0.001)\n"
    (tmp_path / "server.py").write_text(writer)
    (tmp_path / "grade.py").write_text(
        "import os, time\ndef grade(task, calls, workspace):\n"
        "    before = os.path.getsize(workspace + '/late')\n    time.sleep(0.3)\n"
        "    return os.path.getsize(workspace + '/late') - before\n"
    )
    script = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {writer!r}], start_new_session=True)\n"
        "while not os.path.exists('late'): time.sleep(0.01)\n"
    )
    mcp: Any = {"tools": f"python {tmp_path}/server.py"}
    env = made(tmp_path, script, reward=f"{tmp_path}/grade.py:grade", mcp=mcp)
    env.prepare({}, [])
    state = env.start({})
    served = env.serve("tools")
    pipes = [os.open(f"{served.folder}/{name}", os.O_RDWR) for name in ("stdin", "stdout")]
    deadline = time.monotonic() + 60
    while state.exit is None and time.monotonic() < deadline:
        time.sleep(0.02)
        state = env.processes[MAIN].state()
    assert ended(env, env.grade([])).stdout == "0"
    for pipe in pipes:
        os.close(pipe)
    env.close()


SWAPS = {
    "a link in place of its folder": "os.rename(W, W + '2'); os.symlink(OUTSIDE, W)",
    "a link in place of the folder above": "os.rename(A, A + '2'); os.symlink(OUTSIDE, A)",
    "nothing": "shutil.rmtree(A)",
    "folders of a depth of 3,000": (
        "for _ in range(3000): os.mkdir('d'); os.chdir('d')\nopen('f', 'w')"
    ),
    "closed folders": "os.makedirs('a/b'); os.chmod('a/b', 0); os.chmod('a', 0); os.chmod(A, 0)",
    "a FIFO in place of stdin": "os.unlink('../stdin'); os.mkfifo('../stdin')",
    "a link in place of stdin": "os.unlink('../stdin'); os.symlink(OUTSIDE + '/kept', '../stdin')",
    "folders in place of files": (
        "for name in ('stdin', 'stdout', 'stderr', 'exit'):\n"
        "    os.unlink(f'../{name}'); os.makedirs(f'../{name}/x')"
    ),
}


@pytest.mark.parametrize("how", SWAPS)
def test_what_an_agent_does_to_its_folder_harms_itself_alone(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, temporary = tmp_path / "outside", tmp_path / "temporary"
    for folder in (outside, temporary):
        folder.mkdir()
    (outside / "kept").write_text("mine")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (tmp_path / "grade.py").write_text("def grade(*given):\n    return 0.5\n")
    head = (
        f"import os, shutil\nOUTSIDE = {str(outside)!r}\nW = os.getcwd()\nA = os.path.dirname(W)\n"
    )
    env = made(tmp_path, head + SWAPS[how], reward=f"{tmp_path}/grade.py:grade")
    neighbour = made(tmp_path, head + SWAPS[how], reward=f"{tmp_path}/grade.py:grade")
    for each in (env, neighbour):
        each.prepare({"id": "a"}, [])
        with contextlib.suppress(OSError, KeyError):
            ended(each, each.start({}))
        with contextlib.suppress(OSError):
            each.keep("save", str(tmp_path / "kept"), 0)
        with contextlib.suppress(OSError, KeyError):
            assert ended(each, each.grade([])).stdout in ("0.5", "")
    for each in (env, neighbour):
        each.close()
    assert [p.name for p in outside.rglob("*")] == ["kept"]
    assert (outside / "kept").read_text() == "mine"
    for left in temporary.iterdir():  # what the agent has renamed is empty
        assert how.startswith("a link in place of the folder") and not list(left.iterdir())


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)", "os.kill(os.getpid(), 9)"])
def test_code_that_a_grader_calls_gives_no_result_in_its_place(end: str, tmp_path: Path) -> None:
    script = f"import os, sys\nprint('{{\"reward\": 1.0}}', flush=True)\n{end}\n"
    (tmp_path / "grade.py").write_text(
        "import sys\ndef grade(task, calls, workspace):\n"
        "    sys.path.insert(0, workspace)\n    import solution\n    return 0.0\n"
    )
    env = made(
        tmp_path, f"open('solution.py', 'w').write({script!r})", reward=f"{tmp_path}/grade.py:grade"
    )
    env.prepare({}, [])
    assert ended(env, env.start({})).exit == 0
    state = ended(env, env.grade([]))
    assert state.exit not in (None, 0)
    assert "kill" in end or "ended its process before it returned" in state.stderr
    env.close()
