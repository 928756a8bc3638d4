"""Checks an environment's options, packages, programs and data. Each error says what to do."""

import shutil
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from r3l.errors import UserError, install


def choice(option: str, value: object, known: Sequence[object]) -> None:
    """Raises UserError unless the option's value is one of `known`."""
    if value not in known:
        names = " or ".join(map(str, known))
        raise UserError(f"env option {option} is {value!r}; it must be {names}")


def integer(option: str, value: object, low: int, high: int) -> int:
    """Returns the option's value. Raises UserError unless it is an integer from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise UserError(f"env option {option} is {value!r}; it must be an integer in {low}..{high}")
    return value


def package(env: str, module: str, extra: str) -> Any:
    """Imports a module of an optional package. If the import fails, raises UserError with the
    install command.

    `extra`: the extra of this project that installs the package.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != name:
            raise UserError(
                f"env {env}: {module} cannot be imported ({error}); {install(extra)}"
            ) from error
        raise UserError(f"env {env}: needs the package {name}; {install(extra)}") from None


def program(env: str, name: str, install: str) -> None:
    """Raises UserError if a program is not on the path. `install`: the advice in the message."""
    if shutil.which(name) is None:
        raise UserError(f"env {env}: needs the program {name}; {install}")


def folder(env: str, option: str, value: str | None, holds: str, get: str) -> Path:
    """Returns the data folder `value`. Raises UserError if it is missing.

    `holds`: a file that the folder must contain. `get`: how to get the folder, for the message.
    """
    if not value:
        raise UserError(f"env {env}: needs a data folder (option {option}); {get}")
    path = Path(value).expanduser().resolve()
    if not (path / holds).exists():
        raise UserError(f"env {env}: {option} {path} does not contain {holds}; {get}")
    return path


def require_installed(env: str, module: str, extra: str) -> None:
    """Raises UserError unless the package `module` is installed. Does not import the package."""
    if find_spec(module) is None:
        raise UserError(f"env {env}: needs the package {module}; {install(extra)}")
