"""What an environment needs from outside: packages, programs, data. Each absence is one line
that says what to do."""

from __future__ import annotations

import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from r3l.errors import UserError


def package(env: str, module: str, extra: str) -> Any:
    """The imported module of an optional package. Raises UserError with the install command.

    `extra`: the extra of this project that holds the package.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != name:
            raise UserError(
                f"env {env}: {module} cannot be imported ({error}); pip install 'r3l[{extra}]'"
            ) from error
        raise UserError(
            f"env {env}: needs the package {name}; pip install 'r3l[{extra}]'"
        ) from None


def program(env: str, name: str, install: str) -> None:
    """Raises UserError, with the command `install`, unless a program is on the path."""
    if shutil.which(name) is None:
        raise UserError(f"env {env}: needs the program {name}; {install}")


def folder(env: str, option: str, value: str | None, holds: str, get: str) -> Path:
    """The data folder a user names. Raises UserError that says how to get it.

    `holds`: what must lie in the folder; `get`: what to do where there is none.
    """
    if not value:
        raise UserError(f"env {env}: needs its data folder, option {option}; {get}")
    path = Path(value).expanduser().resolve()
    if not (path / holds).exists():
        raise UserError(f"env {env}: {option} {path} holds no {holds}; {get}")
    return path


def installed(env: str, module: str, extra: str) -> None:
    """As `package`, without importing it."""
    if find_spec(module) is None:
        raise UserError(f"env {env}: needs the package {module}; pip install 'r3l[{extra}]'")
