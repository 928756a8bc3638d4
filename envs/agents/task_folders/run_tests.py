"""The grader of Harbor tasks: runs a task's tests, and reads the reward that they wrote.

enter the view ─► test.sh in a process ─► its end, or its time limit ─► /logs/verifier/reward.json
                                                                        or reward.txt ─► result

The reward's folder is in memory that only this process and the tests can reach.
This file uses only the standard library, because envs.agents.call_function runs it.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import select
import signal
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

TESTS, VERIFIER = "/tests", "/logs/verifier"
OUTPUT = f"{VERIFIER}/test-stdout.txt"
LONGEST = 64 << 10
"""Most bytes of a reward file, and of the output that is searched for its last line."""


class TestsFailed(Exception):
    """The tests gave no reward. `cause`: the failure's short name."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


def grade(asked: dict[str, Any]) -> dict[str, Any]:
    """Runs tests. `asked`: their `view`, `variables` and time limit `seconds`. Returns a result
    (envs.agents.agent_steps.outcome_of): {reward, parts}, or {failed, feedback}."""
    views = _load_file("private_view.py")
    views.enter(asked["view"])
    try:
        return _graded(views, asked)
    except TestsFailed as error:
        return {"failed": error.cause, "feedback": str(error)}


def stored_result(path: str) -> dict[str, Any]:
    """Returns the result of a trial of Harbor's runner, which was written by
    envs.agents.task_folders.harbor_play."""
    try:
        done = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"failed": "harbor_no_result", "feedback": "Harbor's trial ended without a result"}
    if done.get("failed"):
        return dict(done)
    try:
        reward, parts = _of_rewards(done["rewards"], "Harbor's result")
        return {"reward": _checked(reward, "Harbor's result"), "parts": parts}
    except TestsFailed as error:
        return {"failed": error.cause, "feedback": str(error)}


def _graded(views: Any, asked: dict[str, Any]) -> dict[str, Any]:
    code = _run(views, asked["variables"], asked["seconds"])
    said = f"test.sh ended with exit code {code}{_last_line()}"
    try:
        result = reward_in(Path(VERIFIER))
    except TestsFailed as error:
        if not code:
            raise
        raise TestsFailed("tests_exit", f"{said}; {error}") from None
    if code and result["reward"] > 0:
        raise TestsFailed("tests_exit", f"{said}; so its reward {result['reward']:g} is not paid")
    return result


def _run(views: Any, variables: dict[str, str], seconds: float) -> int:
    """Runs test.sh in its own session. Returns the exit code. Raises TestsFailed."""
    child = os.fork()
    if not child:
        _become_tests(views, variables)
    ended = os.pidfd_open(child)
    in_time = bool(select.select([ended], [], [], seconds)[0])
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(ended)
    if not in_time:
        raise TestsFailed(
            "tests_timeout",
            f"test.sh took longer than {seconds:g} s (verifier.timeout_sec of task.toml) and was "
            f"killed{_last_line()}",
        )
    return os.waitstatus_to_exitcode(status)


def _become_tests(views: Any, variables: dict[str, str]) -> NoReturn:
    """Becomes test.sh, run by a shell as Harbor does: so it needs no first line `#!`."""
    try:
        os.setsid()
        output = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        script = f"{TESTS}/test.sh"
        os.chmod(script, 0o755)
        views.lock()
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        os.execve(shell, [shell, "-c", script], {**os.environ, **variables})
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def reward_in(folder: Path) -> dict[str, Any]:
    """Reads reward.json or else reward.txt. Returns {reward, parts}. Raises TestsFailed unless the
    reward is a number from 0 to 1."""
    for name, read in (("reward.json", _read_json), ("reward.txt", _read_text)):
        if (text := _text_of(folder / name)) is not None:
            reward, parts = read(text, name)
            return {"reward": _checked(reward, name), "parts": parts}
    raise TestsFailed(
        "tests_no_reward", f"test.sh wrote neither {VERIFIER}/reward.txt nor reward.json"
    )


def _read_json(text: str, name: str) -> tuple[Any, dict[str, float]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _bad(name, text, "is not JSON") from None
    return _of_rewards(found, name)


def _of_rewards(found: Any, name: str) -> tuple[Any, dict[str, float]]:
    """Finds the reward in a number, or in rewards by name: the one called `reward`, or the only
    one. Returns the others as its parts."""
    if not isinstance(found, dict):
        return found, {}
    if "reward" not in found and len(found) != 1:
        raise _bad(name, json.dumps(found), "has no `reward`")
    only = "reward" if "reward" in found else next(iter(found))
    parts = {str(key): _number(value, name) for key, value in found.items() if key != only}
    return found[only], parts


def _read_text(text: str, name: str) -> tuple[Any, dict[str, float]]:
    try:
        return float(text), {}
    except ValueError:
        raise _bad(name, text, "is not a number") from None


def _number(value: Any, name: str) -> float:
    try:
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise _bad(name, str(value), "is not a finite number")
    return number


def _checked(value: Any, name: str) -> float:
    number = _number(value, name)
    if not 0 <= number <= 1:
        raise _bad(name, str(value), "is not from 0 to 1; scale it in test.sh")
    return number


def _bad(name: str, text: str, why: str) -> TestsFailed:
    return TestsFailed("tests_bad_reward", f"{name}: {text!r:.100} {why}")


def _text_of(path: Path) -> str | None:
    """Returns a file's text, or None if there is none. Raises TestsFailed if it is not a file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _bad(path.name, error.strerror or "", "instead of a file") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise _bad(path.name, "", "is not a file")
        return os.read(file, LONGEST).decode(errors="replace")
    finally:
        os.close(file)


def _last_line() -> str:
    """Returns the last line that the tests printed, for a message."""
    try:
        with open(OUTPUT, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST))
            line = file.read().decode(errors="replace").strip().rpartition("\n")[2]
    except OSError:
        return ""
    return f", its last line is {line!r:.200}" if line else ""


def _load_file(name: str) -> Any:
    """Loads a file beside this one, which may run without r3l."""
    spec = importlib.util.spec_from_file_location(
        f"r3l_{Path(name).stem}", Path(__file__).with_name(name)
    )
    assert spec is not None and spec.loader is not None  # a .py file has both
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
