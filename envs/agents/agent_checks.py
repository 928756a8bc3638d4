"""Checks an agent's command, interpreter, imports and functions before anything starts."""

import ast
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from envs.agents.agent_process import Argv, last_error
from envs.agents.agent_variables import child_environment, client_names
from r3l.errors import UserError

CALL_FUNCTION = Path(__file__).with_name("call_function.py")
REMOTE = Path(__file__).with_name("remote_agent.py")
PROGRAM: Argv = (sys.executable, str(CALL_FUNCTION))
"""The command of the starter that runs programs (envs.agents.call_function)."""
WORKSPACE = "workspace"
"""A value of the option `snapshot`: copy only the agent's folder."""
NOTHING = "none"
"""A value of the option `snapshot`: copy nothing."""
CHECK_S = 100.0  # a package that takes a minute to import; below START_S of a worker
CONNECT_S = 10.0
_MISSING = "import sys\nfrom importlib.util import find_spec\nsys.path[0] = sys.argv[1]\n" + (
    "print(*[name for name in sys.argv[2:] if find_spec(name) is None])"
)


@cache
def interpreter(python: str) -> str:
    """Returns the agent's interpreter. Raises UserError if it cannot be run."""
    if not python:
        return sys.executable
    path = shutil.which(os.path.expanduser(python))
    if path is None:
        raise UserError(f"env agent: python: {python} is not a program; name an interpreter")
    if run_command(f"python: {python}", [path, "-c", "import sys, json, ctypes"]).returncode:
        raise UserError(
            f"env agent: python: {python} does not run Python with ctypes; name an interpreter"
        )
    return os.path.abspath(path)


@cache
def starter_of(
    command: str, python: str, option: str = "command", workspace: str = ""
) -> tuple[Argv, Argv]:
    """Returns two commands, (starter, program). The starter (envs.agents.call_function) runs the
    program. The program is () if `command` is a URL or a `file.py:function`. Raises UserError if a
    program, file, package or server is missing."""
    what = f"env agent: {option} {command!r}"
    if is_url(command):
        _check_url(what, command)
        return (*PROGRAM, f"{REMOTE}:play"), ()
    if is_function(command):
        return starter_of_function(option, command, python), ()
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"{what}: {error}") from None
    if not words:
        raise UserError(f"env agent: {option} is empty; give the line that starts the agent")
    own = interpreter(python)
    program = own if words[0] in ("python", "python3") else shutil.which(words[0])
    if program is None:
        raise UserError(f"{what}: {words[0]} is not a program")
    _check_script(what, program, words[1:], workspace)
    module = words[1:2] == ["-m"] and _runs_python(program)
    rest = [
        os.path.abspath(word) if os.path.exists(word) and not (module and i == 1) else word
        for i, word in enumerate(words[1:])
    ]
    return PROGRAM, (os.path.abspath(program), *rest)


def keepers_of(snapshot: str, restore: str, python: str, workspace: str) -> dict[str, Argv]:
    """Returns the commands that save and restore what an agent keeps outside its folder, or {} if
    there are none. Raises UserError if only one of the two is given, or if either is a function or
    a URL."""
    if snapshot in ("", NOTHING, WORKSPACE) and not restore:
        return {}
    for option, command in (("snapshot", snapshot), ("restore", restore)):
        no_program = command in ("", NOTHING, WORKSPACE)
        if no_program or is_function(command) or is_url(command):
            raise UserError(
                f"env agent: {option} {command!r} is not a command; give a command for each of "
                f"snapshot and restore, or leave restore out and set snapshot={WORKSPACE} or "
                f"snapshot={NOTHING}"
            )
    return {
        "save": starter_of(snapshot, python, "snapshot", workspace)[1],
        "restore": starter_of(restore, python, "restore", workspace)[1],
    }


def servers_of(mcp: dict[str, str], python: str, workspace: str) -> dict[str, Argv]:
    """Returns each MCP server's command, or () for a server with a URL. Raises UserError."""
    servers = {}
    for name, command in mcp.items():
        if not re.fullmatch("[a-z0-9][a-z0-9_-]*", name) or is_function(str(command)):
            raise UserError(
                f"env agent: mcp: {name}: {command} must be a command or a URL, and the server's "
                "name must consist of small letters, digits, _ and -"
            )
        servers[name] = starter_of(str(command), python, f"mcp: {name}:", workspace)[1]
    return servers


def _check_url(what: str, url: str) -> None:
    """Raises UserError if no server listens at a URL."""
    try:
        parts = urlsplit(url)
        place = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection(place, CONNECT_S).close()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{what} does not answer ({why})") from None


def is_url(command: str) -> bool:
    return command.startswith(("http://", "https://"))


def is_function(target: str) -> bool:
    """Returns whether a text has the form `file.py:function`."""
    file = target.rpartition(":")[0]
    return file.endswith(".py") and (" " not in file or os.path.isfile(file))


@cache
def starter_of_function(option: str, target: str, python: str) -> Argv:
    """Returns the command of the starter that calls `file.py:function`. Raises UserError unless
    the interpreter imports the file and finds the function."""
    own, (file, _, name) = interpreter(python), target.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not is_function(target) or not path.is_file():
        raise UserError(
            f"env agent: {option} {target}: must be file.py:function, and the file must exist"
        )
    argv = (own, str(CALL_FUNCTION), f"{path}:{name}")
    ended = run_command(f"{option} {target}", argv)
    if ended.returncode:
        raise UserError(f"env agent: {option} {target}: {error_of(ended)} (with {own})")
    return argv


def check_needs_no_folder(target: str) -> None:
    """Raises UserError if the source of a grader, `file.py:function`, asks for a third argument:
    the attempt's folder. Does not see through decorators and imports."""
    file, _, name = target.rpartition(":")
    try:
        tree = ast.parse(Path(file).expanduser().read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # other checks name the fault
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            given = [*node.args.posonlyargs, *node.args.args]
            if len(given) - len(node.args.defaults) > 2 and not node.decorator_list:
                raise UserError(
                    f"env agent: reward {target}: needs {given[2].arg!r}, the attempt's folder, "
                    "which is not stored; name a function that takes only the task and the calls"
                )


def error_of(ended: subprocess.CompletedProcess[str]) -> str:
    """Returns the error with which a process ended, or its exit code if it said nothing."""
    return last_error(ended.stderr) or f"exit code {ended.returncode}"


def run_command(
    what: str, argv: Sequence[str], limit_s: float = CHECK_S
) -> subprocess.CompletedProcess[str]:
    """Runs a command without input. Raises UserError if it cannot start or takes too long."""
    nothing, environment = subprocess.DEVNULL, child_environment({}, client_names(os.environ))
    try:
        return subprocess.run(
            argv,
            stdin=nothing,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"env agent: {what}: cannot be checked ({error})") from None


def _runs_python(program: str) -> bool:
    return re.fullmatch(r"python[\d.]*", os.path.basename(program)) is not None


def _check_script(what: str, program: str, words: Sequence[str], workspace: str) -> None:
    """Raises UserError if the program's script or module is missing. Also looks in `workspace`,
    because the program runs in a copy of that folder."""
    runs_python = _runs_python(program)
    first = next((word for word in words if not word.startswith("-")), "")
    scripts = [word for word in words if word.endswith(".py")] if runs_python else [first]
    for script in [script for script in scripts if script.endswith((".py", ".sh"))][:1]:
        if not os.path.exists(script) and not os.path.exists(
            os.path.join(os.path.expanduser(workspace), script)
        ):
            raise UserError(f"{what}: {script} does not exist")
        if runs_python and os.path.exists(script):
            _check_imports(script, program)
    if not runs_python:
        return
    if not words:
        raise UserError(f"{what}: names no script; give python a file to run")
    if words[0] == "-m" and first:
        folder = os.path.expanduser(workspace) or os.devnull  # an agent's own folder begins empty
        asked = [program, "-c", _MISSING, folder, first.partition(".")[0]]
        if run_command(first, asked).stdout.split():
            why = f"{program} has no module {first}; install it, or put it into the workspace"
            raise UserError(f"{what}: {why}")


def _check_imports(script: str, python: str) -> None:
    """Raises UserError if `python` lacks a package that a script imports at its top level."""
    try:
        source = Path(script).read_bytes()
        if b"sys.path" in source:  # the script decides where it imports from
            return
        tree = ast.parse(source)
    except (OSError, SyntaxError) as error:
        raise UserError(f"env agent: {script} cannot be read as Python ({error})") from None
    names = [alias.name for n in tree.body if isinstance(n, ast.Import) for alias in n.names]
    names += [n.module for n in tree.body if isinstance(n, ast.ImportFrom) and n.module]
    roots = sorted({name.partition(".")[0] for name in names})
    folder = os.path.dirname(os.path.abspath(script))
    missing = run_command(script, [python, "-c", _MISSING, folder, *roots]).stdout.split()
    if missing:
        raise UserError(
            f"env agent: {script} imports {', '.join(missing)}, which {python} does not have; "
            "set the option python to the agent's own interpreter"
        )
