"""Starts the processes of agents and graders, as forks of the process that runs this file.

    python call_function.py FILE:NAME    calls a function, imported once, in each new process
    python call_function.py              runs a program in each new process

Each line of standard input is a JSON list, `[folder, variables, argv]`. Each line starts a process,
whose id is printed. A function's arguments are a JSON list in the folder's file `stdin`. Its result
is the last line of the file `stdout`. The exit code of an ended process is in the file `exit`.
This file uses only the standard library, because the agent's own interpreter runs it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from typing import Any

MODULE = "r3l_agent_function"  # the name under which an agent's file is imported
OUTPUT_LIMIT = 1 << 30  # bytes of any file that an agent writes


def find(target: str) -> Any:
    """Imports the function `file.py:name`. Exits with an error message if it is missing."""
    file, _, name = target.rpartition(":")
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    spec = importlib.util.spec_from_file_location(MODULE, file)
    assert spec is not None and spec.loader is not None  # a .py file has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        sys.exit(f"{file} defines no function {name}")
    return function


def call(function: Any, arguments: list[Any]) -> None:
    """Calls the function and prints its result as JSON, on a line of its own."""
    value = function(*arguments[: _takes(function)])
    if inspect.isawaitable(value):
        value = asyncio.run(_awaited(value))
    print(f"\n{json.dumps(value)}")


def _takes(function: Any) -> int | None:
    """Returns how many positional arguments a function takes; None if unlimited or unknown."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # it is not written in Python
        return None
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        wrapped = getattr(function, "__wrapped__", None)  # what a decorator hands them on to
        return wrapped and _takes(wrapped)
    return len([kind for kind in kinds if kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD])


async def _awaited(value: Any) -> Any:
    return await value


def _called(function: Any) -> int:
    """Calls the function in a child process. Returns the exit code, or -N if signal N ended the
    child."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        call(function, json.load(sys.stdin))
        sys.stdout.flush()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        print(end.code if code else "", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code & 255)


def _run(argv: list[str]) -> int:
    """Runs a program. Returns its exit code. Gives up this process's copies of its input and
    output, so that others notice when the program closes them."""
    program = subprocess.Popen(argv)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    return program.wait()


def _in_child(function: Any, folder: str, variables: dict[str, str], argv: list[str]) -> None:
    """Runs in the fork. Calls the function or runs the program, writes the exit code, and exits."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_LIMIT, OUTPUT_LIMIT))
    os.chdir(os.path.join(folder, "work"))
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if fd else os.O_RDONLY
        opened = os.open(os.path.join(folder, name), flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    os.environ.clear()
    os.environ.update(variables)
    code = 1
    try:
        code = _called(function) if function else _run(argv)
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    with open(os.path.join(folder, "exit.new"), "w") as file:
        file.write(str(code))
    os.rename(os.path.join(folder, "exit.new"), os.path.join(folder, "exit"))
    os._exit(0)


def main(target: str) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the file may print while it is imported
    try:
        function = find(target) if target else None
    finally:
        sys.stdout.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for its children
    for line in iter(sys.stdin.readline, ""):
        folder, variables, argv = json.loads(line)
        child = os.fork()
        if not child:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _in_child(function, folder, variables, argv)
        print(child, file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
