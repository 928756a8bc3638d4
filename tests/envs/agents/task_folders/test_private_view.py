"""A process sees other files at some paths, and cannot change that."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envs.agents.task_folders import private_view

TRIED = subprocess.run([sys.executable, private_view.__file__], capture_output=True, text=True)
pytestmark = pytest.mark.skipif(
    bool(TRIED.returncode), reason=f"no mount namespaces here: {TRIED.stderr.strip()}"
)
SEEN = """
import json, os, sys
from envs.agents.task_folders.private_view import enter, lock
enter(json.loads(sys.argv[1]))
lock()
exec(sys.argv[2])
"""


def seen(view: dict[str, Any], code: str) -> Any:
    """Runs code in a process with a view. Returns what it prints, read as JSON."""
    argv = [sys.executable, "-c", SEEN, json.dumps(view), code]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert not ended.returncode, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture
def view(tmp_path: Path) -> dict[str, Any]:
    """A view with a folder at /app, a copy at /tests, and the folder `secret` hidden."""
    for name in ("root", "work", "tests", "secret", "r3l-agent-1", "r3l-agent-2", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return {
        "root": str(tmp_path / "root"),
        "binds": [[str(tmp_path / "work"), "/app"], [str(tmp_path / "r3l-agent-1"), "/logs/agent"]],
        "copies": [[str(tmp_path / "tests"), "/tests"], ["", "/logs/verifier"]],
        "hidden": [str(tmp_path / "secret")],
        "temporary": [str(tmp_path)],
        "folder": "/app",
    }


def test_folders_are_shown_at_other_paths_and_others_are_hidden(
    view: dict[str, Any], tmp_path: Path
) -> None:
    code = f"""
open("new", "w").write("made")
open("/tests/file", "a").write(" changed")
open("/logs/verifier/reward.txt", "w").write("1")
here = {str(tmp_path)!r}
print(json.dumps([os.getcwd(), sorted(os.listdir("/app")), open("/tests/file").read(),
    open("/logs/agent/file").read(), sorted(os.listdir(here)), os.listdir(here + "/secret"),
    os.getuid(), os.path.exists("/solution"), os.path.exists("/usr/bin/env")]))
"""
    folder, files, tests, logs, beside, secret, user, *exist = seen(view, code)
    assert (folder, files, tests, logs) == ("/app", ["file", "new"], "tests changed", "r3l-agent-1")
    assert beside == ["other", "root", "secret", "tests", "work"] and secret == []
    assert user == os.getuid() and exist == [False, True]
    assert (tmp_path / "work" / "new").read_text() == "made"
    assert (tmp_path / "tests" / "file").read_text() == "tests"
    assert sorted(os.listdir(tmp_path / "root")) == ["file"]


ESCAPES = """
import ctypes, subprocess
libc = ctypes.CDLL(None, use_errno=True)
found = []
def tried():
    for path in (HERE + "/secret", HERE, "/"):
        libc.umount2(path.encode(), 2)
    found.append(os.listdir(HERE + "/secret"))
tried()
libc.unshare(0x10000000 | 0x20000)
tried()
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        found.append(os.listdir(f"/proc/{pid}/root{HERE}/secret"))
    except OSError:
        pass
print(json.dumps(found))
"""


def test_a_locked_view_cannot_be_taken_away(view: dict[str, Any], tmp_path: Path) -> None:
    found = seen(view, ESCAPES.replace("HERE", repr(str(tmp_path))))
    assert len(found) > 2 and not any(found)


def test_the_working_directory_covers_a_folder_of_this_machine(
    view: dict[str, Any], tmp_path: Path
) -> None:
    view["binds"][0][1] = view["folder"] = "/opt/mine"
    code = 'print(json.dumps([os.getcwd(), os.listdir("/opt"), os.listdir("/opt/mine")]))'
    assert seen(view, code) == ["/opt/mine", ["mine"], ["file"]]
    assert "mine" not in os.listdir("/opt")


def test_a_folder_that_is_gone_is_an_error(view: dict[str, Any], tmp_path: Path) -> None:
    view["binds"].append([str(tmp_path / "gone"), "/data"])
    with pytest.raises(AssertionError, match="mount: No such file or directory"):
        seen(view, "print(1)")
