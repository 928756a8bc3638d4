"""What tests ask of a process, which may end between any two questions."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import psutil


def lives(process: psutil.Process | int) -> bool:
    """Whether a process runs, or the one of a process id. One that has ended and whose exit code
    nobody has read does not."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return found.is_running() and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_line(process: psutil.Process) -> list[str]:
    """The name and the command line of a process; empty once it has ended."""
    try:
        return [process.name(), *process.cmdline()]
    except psutil.NoSuchProcess:
        return []


def without_rights(script: str, **variables: str) -> str:
    """Runs Python without any right of root, as an ordinary user does, from whom the kernel may
    hide something. Returns what it prints."""
    root = Path(__file__).parents[1]
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=given | variables,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=_drop_rights,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def _drop_rights() -> None:
    """Takes all capabilities from what this process executes."""
    pr_capbset_drop = 24
    for capability in range(64):
        ctypes.CDLL(None).prctl(pr_capbset_drop, capability, 0, 0, 0)
