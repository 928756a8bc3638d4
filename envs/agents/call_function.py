"""Calls a function of a file, each time in a new process: `python call_function.py FILE:NAME`.

Imports the file once, then forks for each line of its input, `[folder, variables]`, and prints the
process's id. The new process takes its arguments from the folder's file `stdin`, a JSON list; what
the function returns is the last line of `stdout`, and the exit code is in `exit`. With no input it
only checks that the function exists. Runs in the agent's own interpreter, so it uses nothing but
the standard library.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import signal
import sys
import traceback
from typing import Any


def find(target: str) -> Any:
    """Imports the function `file.py:name`. Exits with a sentence if it is missing."""
    file, _, name = target.rpartition(":")
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    spec = importlib.util.spec_from_file_location("r3l_agent_function", file)
    assert spec is not None and spec.loader is not None  # a .py file has both
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        sys.exit(f"{file} defines no function {name}")
    return function


def call(function: Any, arguments: list[Any]) -> None:
    """Call the function and print its result as a line of its own."""
    value = function(*arguments)
    if inspect.isawaitable(value):
        value = asyncio.run(_awaited(value))
    print(f"\n{json.dumps(value)}")


async def _awaited(value: Any) -> Any:
    return await value


def _in_child(function: Any, folder: str, variables: dict[str, str]) -> None:
    """Call the function in this forked process, which ends."""
    os.setsid()
    os.chdir(os.path.join(folder, "work"))
    for fd, (name, flags) in enumerate((("stdin", os.O_RDONLY), ("stdout", 1), ("stderr", 1))):
        os.dup2(os.open(os.path.join(folder, name), flags | (os.O_CREAT if fd else 0), 0o600), fd)
    os.environ.clear()
    os.environ.update(variables)
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
    with open(os.path.join(folder, "exit.new"), "w") as file:
        file.write(str(code))
    os.rename(os.path.join(folder, "exit.new"), os.path.join(folder, "exit"))
    os._exit(code)


def main(target: str) -> None:
    """Serve the function until the input ends."""
    function = find(target)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for its children
    replies = os.fdopen(os.dup(1), "w")
    for line in iter(sys.stdin.readline, ""):
        folder, variables = json.loads(line)
        child = os.fork()
        if not child:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _in_child(function, folder, variables)
        print(child, file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
