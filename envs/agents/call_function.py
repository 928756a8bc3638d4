"""Starts the processes of agents and graders, as forks of the process that runs this file.

    python call_function.py FILE:NAME    calls a function, imported once, in each new process
    python call_function.py              runs a program in each new process

    starter ─► wrapper: its id is printed ─► the function or program ─► what that starts

An empty line is printed at the start. Each line of standard input is then a JSON object, a `Job`,
which starts a wrapper. A function's arguments are a JSON list in the folder's file `stdin`. Its
result is the last line of the file `stdout`. The wrapper becomes the parent of every orphan below
it, and kills what is left when the function or program has ended. Then it writes the exit code to
the file `exit`. The starter becomes the parent of what a killed wrapper leaves.
This file uses only the standard library, because the agent's own interpreter runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.util
import inspect
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from decimal import Decimal
from importlib.machinery import SourceFileLoader
from numbers import Real
from typing import Any, NoReturn, TextIO, TypedDict

PRIVATE_VIEW = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "task_folders", "private_view.py"
)
MODULE = "r3l_agent_function"  # the name under which an agent's file is imported
OUTPUT_LIMIT = 1 << 30  # bytes of any file that an agent writes
CLEAR_S = 5.0
"""Time limit for killing what a process left, seconds. One stuck in the kernel dies later."""
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 24, 36, 38
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
SCOPE_SIGNAL, SCOPES_SINCE = 2, 6  # the version of Landlock (Linux 6.12)
CAPABILITY_VERSION, SYS_PTRACE, SYS_ADMIN, PERFMON = 0x20080522, 19, 21, 38
"""Version of the kernel's interface, and rights with which root looks into any other process."""
LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


class Job(TypedDict):
    """What a wrapper runs. `folder`: where its files are, and its working directory `work`. `argv`:
    the program's command, [] for a function. `lasting`: the processes that it starts stay alive
    until the process `head` is killed. `fenced`: it may neither signal nor inspect other processes.
    `returns`: the function must return, so that code that it calls cannot print a result and end
    the process. `view`: what it sees of the files (envs.agents.task_folders.private_view); None:
    all."""

    folder: str
    variables: dict[str, str]
    argv: list[str]
    lasting: bool
    fenced: bool
    returns: bool
    view: Mapping[str, object] | None


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """Returns the ids of a process's children, including those that it has adopted. If some end
    meanwhile, may miss a child, but never all of them."""
    if not LISTS_CHILDREN:
        return _listed(pid)
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def _listed(parent: int) -> list[int]:
    """Returns the ids of a process's children, from the list of all processes."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stat:
                _, _, fields = stat.read().rpartition(b")")  # a name may hold anything
                if int(fields.split()[1]) == parent:
                    found.append(int(entry))
    return found


class _Source(SourceFileLoader):
    """Reads the file and never its cached bytecode, which a change of equal size in the same second
    leaves in use."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def find(target: str) -> Any:
    """Imports the function `file.py:name`. Exits with an error message if it is missing."""
    file, _, name = target.rpartition(":")
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    spec = importlib.util.spec_from_file_location(MODULE, file, loader=_Source(MODULE, file))
    assert spec is not None and spec.loader is not None  # it was given
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
    print(f"\n{json.dumps(value, default=_number)}")


def _number(value: Any) -> int | float:
    """Returns a number of another library, such as numpy, as a number of Python. Accepts an array
    of one number. Raises TypeError for anything else."""
    plain = value
    with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError):
        plain = value.item()
    if isinstance(plain, (int, float)):
        return plain
    if isinstance(plain, (Real, Decimal)):
        return float(plain)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


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


def _run(function: Any, job: Job, returned: int) -> NoReturn:
    """Calls the function or becomes the program, in a process of its own. Writes to `returned` when
    the function has returned."""
    code = 1
    try:
        if job["view"]:
            _change_view(job["view"])
        if job["fenced"]:
            _fence()
        if job["argv"]:
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
                signal.signal(number, signal.SIG_DFL)
            os.execve(job["argv"][0], job["argv"], job["variables"])
        call(function, json.load(sys.stdin))
        sys.stdout.flush()
        os.write(returned, b"1")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        print(end.code if code else "", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code & 255)


def _change_view(view: Mapping[str, object]) -> None:
    """Gives this process other files at some paths, which it cannot change back."""
    spec = importlib.util.spec_from_file_location("r3l_private_view", PRIVATE_VIEW)
    assert spec is not None and spec.loader is not None  # a .py file has both
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.enter(view)
    module.lock()


def _fence() -> None:
    """Makes the kernel refuse signals to outside processes, and access to their memory and
    variables. Does nothing on a kernel without scopes of Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1) < SCOPES_SINCE:
        return
    rules = (ctypes.c_uint64 * 3)(0, 0, SCOPE_SIGNAL)  # no rule about files or the network
    fence = libc.syscall(LANDLOCK_CREATE_RULESET, rules, ctypes.sizeof(rules), 0)
    if fence < 0:
        return
    if libc.syscall(LANDLOCK_RESTRICT_SELF, fence, 0):  # it takes a right that few users have
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        libc.syscall(LANDLOCK_RESTRICT_SELF, fence, 0)
    os.close(fence)
    _drop_rights(libc)


def _drop_rights(libc: Any) -> None:
    """Takes away root's rights to look into other processes. Does nothing for other users."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    rights = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable ones; then the upper 32
    for right in (SYS_PTRACE, SYS_ADMIN, PERFMON):
        prctl(PR_CAPBSET_DROP, right)
    if libc.capget(header, rights):
        return
    for right in (SYS_PTRACE, SYS_ADMIN, PERFMON):
        for kind in range(3):
            rights[right // 32 * 3 + kind] &= ~(1 << right % 32)
    libc.capset(header, rights)


def _wrap(function: Any, job: Job) -> NoReturn:
    """Runs the function or program, ends what it leaves, writes the exit code, and exits."""
    try:
        os.setsid()
        if not job["lasting"]:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_LIMIT, OUTPUT_LIMIT))
        folder = job["folder"]
        os.chdir(os.path.join(folder, "work"))
        code = os.open(os.path.join(folder, "exit"), os.O_WRONLY | os.O_NOFOLLOW)
        for fd, name in enumerate(("stdin", "stdout", "stderr")):
            flags = (os.O_WRONLY if fd else os.O_RDONLY) | os.O_NOFOLLOW
            opened = os.open(os.path.join(folder, name), flags)
            os.dup2(opened, fd)
            os.close(opened)
        os.environ.clear()
        os.environ.update(job["variables"])
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            os.close(code)
            os.close(told)
            _run(function, job, tell)
        os.close(tell)
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1):  # so that its pipes close when it closes them
            os.dup2(nothing, fd)
        ended = 0
        while ended != child:
            ended, status = os.wait()
        if not job["lasting"]:
            _end_children()
        ended = os.waitstatus_to_exitcode(status)
        if job["returns"] and not ended and not os.read(told, 1):
            print("it ended its process before it returned", file=sys.stderr)
            ended = 1
        os.write(code, b"%d" % ended)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _end_children() -> None:
    """Kills all children, and those that this process adopts when they end."""
    end = time.monotonic() + CLEAR_S
    while time.monotonic() < end:
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        for child in children_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.002)


def _start_wrapper(function: Any, job: Job, replies: TextIO) -> tuple[int, int]:
    """Forks a wrapper. Returns its id and the id of its head: the process that adopts what a
    lasting wrapper leaves, otherwise the wrapper itself."""
    told, tell = os.pipe() if job["lasting"] else (-1, -1)
    head = os.fork()
    if not head:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(replies.fileno())
            if job["lasting"]:
                os.close(told)
                _stay(function, job, tell)
            _wrap(function, job)
        finally:
            os._exit(0)
    if not job["lasting"]:
        return head, head
    os.close(tell)
    with os.fdopen(told, "rb") as answer:
        return int(answer.read()), head


def _stay(function: Any, job: Job, tell: int) -> None:
    """Forks a wrapper, and writes its id to `tell`. Returns when nothing of it is left."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wrapper = os.fork()
    if not wrapper:
        os.close(tell)
        _wrap(function, job)
    os.write(tell, b"%d" % wrapper)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, tell):
        os.dup2(nothing, fd)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    os._exit(0)


def main(target: str) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the file may print while it is imported
    prctl(PR_SET_DUMPABLE, 0)  # it has the keys of all attempts
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        function = find(target) if target else None
    finally:
        sys.stdout.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for its children
    print(file=replies, flush=True)
    for line in iter(sys.stdin.readline, ""):
        print(*_start_wrapper(function, json.loads(line), replies), file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")  # a further argument marks the process
