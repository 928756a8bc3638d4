"""What users can get wrong on a command line, in a setting or a file: the table bad_inputs.txt.

Each row is a command line and, indented below it, what stands in the answer; … stands for any
text. The answer is exit code 2 and one line on stderr; nothing is started and nothing written.
"""

import contextlib
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from actors.cli import main as actor
from buffer.cli import main as buffer
from buffer.storage.store import Store
from launch.cli import main as launch
from launch.eval_cli import main as evaluate
from learner.cli import main as learner
from r3l.models.model_path import builtin_policy

COMMANDS: dict[str, Any] = {
    "r3l-launch": launch,
    "r3l-eval": evaluate,
    "r3l-learner": learner.main,  # calling it ends the process
    "r3l-actor": actor,
    "r3l-buffer": buffer,
}
MINE = """
from envs import EnvSpec, ListedTasks
class Mine:
    spec, in_process = EnvSpec("mine", "", max_steps=1), True
    close = lambda self: None
    reset = lambda self, **_: ("go", {})
    step = lambda self, action: ("done", 0.0, True, False, {})
"""
FILES = {
    "file": "",
    "good.yaml": f"model: {builtin_policy()}\n",
    "bad.yaml": "learner: [1",
    "list.yaml": "- 1\n- 2\n",
    "empty.yaml": "",
    "alias.yaml": "learner: {deepspeed: &a {x: *a}}",
    "twice.yaml": "seed: 1\nseed: 2\n",
    "unknown.yaml": "learner: {speed: 9}\n",
    "nomodel.yaml": "model: /no/such/model\n",
    "reserved.yaml": f"model: {builtin_policy()}\nactor: {{engine: {{worker_extension_cls: x}}}}\n",
    "badkeys/service.json": json.dumps(
        {"public": "é" * 40, "secret": "a" * 40, "clients": [], "learners": []}
    ),
    "first/config.yaml": f"model: {builtin_policy()}\n",
    "runs/first/config.yaml": f"model: {builtin_policy()}\n",
    "halfmodel/config.json": "{}",
    "evaluation/results.jsonl": "{}\n",
    "door.py": MINE.replace("Mine", "Door"),
    "exits.py": "raise SystemExit(0)",
    "syntax.py": "class Bad\n",
    "imports.py": "import no_such_package_of_mine\n",
    "bare.py": "class Bare: ...\n",
    "tasks.jsonl": '{"id": 1}\n',
    "whole/task.toml": "",
    "whole/instruction.md": "Do it.",
    "whole/tests/test.sh": "",
    "whole/environment/Dockerfile": "FROM a\n",
    "untested/instruction.md": "Do it.",
    "untested/task.toml": "",
    "torn/task.toml": "[agent",
    "future/task.toml": 'schema_version = "9.0"',
    "critic.jsonl": '{"type": "session", "harness": "x", "id": "s"}\n'
    '{"type": "message", "message": {"role": "critic", "content": "bad"}}\n',
    "noid.jsonl": '{"q": 1}\n',
    "shut.py": MINE + "    def reset(self, **_): raise KeyError('shut')\n",
    "none.py": MINE + "    step = lambda self, action: None\n",
    "fails.py": MINE + "    task_source = staticmethod(lambda: 1 / 0)\n",
    "five.py": MINE + "    task_source = staticmethod(lambda: 5)\n",
    "listed.py": MINE + "    task_source = staticmethod(lambda: ListedTasks({'train': [1]}))\n",
    "spec.py": MINE + "    spec = 'x'\n",
    "notasks.py": MINE + "    task_source = staticmethod(lambda: ListedTasks({}))\n",
}
FOREIGN = ("Traceback", "pydantic", "Input should", "<class", "Errno", "dict", "Usage:")
"""Words of Python and its libraries, which say nothing to users."""


def rows() -> list[tuple[str, str]]:
    """(command line, what stands in the answer) of the table."""
    found: list[tuple[str, str]] = []
    for line in Path(__file__).with_name("bad_inputs.txt").read_text("utf-8").splitlines():
        if line.startswith("r3l-"):
            found.append((line, ""))
        elif line.startswith("    "):
            found[-1] = (found[-1][0], line.strip())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and FILES."""
    made = tmp_path_factory.mktemp("user")
    for name, text in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text, "utf-8")
    (made / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    Store(made / "store", map_gib=0.1).close()
    return made


@pytest.fixture
def nothing_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The commands run in `folder`, start no process and leave every file as it was."""

    def state() -> dict[Path, tuple[int, int]]:
        found = [path for path in folder.rglob("*") if path.name != "lock.mdb"]  # of readers
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in found}

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # for what a command starts
    monkeypatch.setenv("R3L_STARTER_PID", "")  # which r3l-actor sets
    monkeypatch.setattr("actors.engine.VLLMPolicy.start", lambda *_, **__: pytest.fail("engine"))
    monkeypatch.setattr("launch.supervisor.Run.execute", lambda self: pytest.fail("a run"))
    before, children = state(), set(psutil.Process().children())  # of earlier tests, which may end
    yield
    assert state() == before
    assert set(psutil.Process().children()) <= children


def answer(line: str) -> tuple[object, str]:
    """(exit code, stderr) of a command line, in this process."""
    name, *arguments = shlex.split(line)
    said, shown = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", [name, *arguments])
    to = contextlib.redirect_stderr(said), contextlib.redirect_stdout(shown)
    with argv, to[0], to[1], pytest.raises(SystemExit) as ended:
        COMMANDS[name](arguments, prog_name=name)
    assert shown.getvalue() == ""
    return ended.value.code, said.getvalue()


def check(line: str, expected: str, code: object, said: str) -> None:
    """The answer is code 2 and one line that begins with the command and holds `expected`."""
    assert code == 2, said
    assert said.count("\n") == 1 and said.startswith(f"{line.split()[0]}: "), said
    assert not [word for word in FOREIGN if word in said], said
    rest = said
    for part in filter(None, expected.split("…")):
        assert part in rest, said
        rest = rest.partition(part)[2]


@pytest.mark.parametrize(("line", "expected"), rows())
@pytest.mark.usefixtures("nothing_starts")
def test_a_bad_input_is_answered_in_one_line_and_starts_nothing(line: str, expected: str) -> None:
    if "gsm8k" in line or "aime" in line:
        pytest.importorskip("math_verify")
    check(line, expected, *answer(line))


def test_the_table_has_an_answer_for_each_row_and_no_row_twice() -> None:
    lines = [line for line, _ in rows()]
    assert len(lines) == len(set(lines)) >= 155
    assert [line for line, expected in rows() if not expected] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_process_of_each_command_answers_as_the_table_says(name: str, folder: Path) -> None:
    line, expected = next(row for row in rows() if row[0].startswith(f"{name} "))
    script = Path(sys.executable).with_name(name)
    command = [script, *shlex.split(line)[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.stdout == ""
    check(line, expected, done.returncode, done.stderr)
