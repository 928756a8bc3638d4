"""Finds classes by name in a registry, or in a user's file: `my_rules.py:Recency`."""

import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from r3l.errors import UserError, did_you_mean

T = TypeVar("T")
PREFIX = "r3l_user_"  # of the names of users' modules


def find(setting: str, name: str, registry: Mapping[str, type[T]], base: Any) -> type[T]:
    """Finds a class. `name`: a key of `registry`, or FILE.py:CLASS for a subclass of `base`. Raises
    UserError for any other name."""
    if name in registry:
        return registry[name]
    file, _, attribute = name.rpartition(":")
    if not file.endswith(".py"):
        raise UserError(
            f"{setting} {name!r:.80}: unknown{did_you_mean(name, registry)}; choose one of "
            f"{', '.join(registry)}, or path/to/file.py:Class"
        )
    kind: Any = getattr(
        module(f"{setting} {name:.200}", Path(file).expanduser().resolve()), attribute, None
    )
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise UserError(
            f"{setting} {name:.200}: {attribute!r} in that file is not a subclass of "
            f"{base.__name__}"
        )
    return kind


def module(what: str, path: Path) -> object:
    """Imports a file as a module, once. Raises UserError, which begins with `what`, if the file is
    missing or its code raises."""
    name = f"{PREFIX}{path.stem}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if not path.is_file():
        raise UserError(f"{what}: file {path} does not exist")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file has both
    sys.modules[name] = made = importlib.util.module_from_spec(spec)
    try:
        with errors_named(f"{what}: importing it"):
            spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[name]
        raise
    return made


@contextmanager
def errors_named(what: str) -> Iterator[None]:
    """Turns whatever a user's code raises, even SystemExit, into a UserError that begins with
    `what`. Does not change a UserError or KeyboardInterrupt."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{what} raised {type(error).__name__}: {reason}{_hint(error)}{_place(error)}"
        ) from error


def _place(error: BaseException) -> str:
    """Names the last line of a user's file that was carried out; "" if there is none."""
    files = {m.__file__ for n, m in sys.modules.items() if n.startswith(PREFIX) and m is not None}
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
    return f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""


def _hint(error: BaseException) -> str:
    """Says where a package was found that lacks a module: a user's own may have the same name."""
    package, dot, _ = str(getattr(error, "name", "")).partition(".")
    file = getattr(sys.modules.get(package), "__file__", None)
    if not (isinstance(error, ModuleNotFoundError) and dot and file):
        return ""
    return f" ({package} is {Path(file).parent}; a package of yours needs another name)"
