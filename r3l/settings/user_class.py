"""Finds classes by name in a registry, or in a user's file: `my_rules.py:Recency`."""

import importlib.util
import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, TypeVar

from r3l.errors import UserError, did_you_mean

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = tuple(
    f"{Path(sysconfig.get_path(name)).resolve()}{os.sep}"
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
BEGINNING = 60  # characters of a text that is not JSON
PREFIX = "r3l_user_"  # of the names of users' modules
READ = "__r3l_read__"  # attribute of a user's module: when its file had been changed last, in ns


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


class _Source(SourceFileLoader):
    """Reads the file and never its cached bytecode: a program that edits a setting in the file and
    starts a run within the same second would get the old setting."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def module(what: str, path: Path) -> object:
    """Imports a file as a module, once. Raises UserError, which begins with `what`, if the file is
    missing or its code raises."""
    name = f"{PREFIX}{path.stem}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if not path.is_file():
        raise UserError(f"{what}: file {path} does not exist")
    loader = _Source(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None and spec.loader is not None  # it was given
    sys.modules[name] = made = importlib.util.module_from_spec(spec)
    setattr(made, READ, path.stat().st_mtime_ns)
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
    `what` and ends with the file and line of the user's own code. A UserError keeps its text,
    followed by the file and line. Does not change KeyboardInterrupt."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except UserError as error:
        place = place_of(error)
        if not place or place in str(error):
            raise
        raise type(error)(f"{error} ({place})", **error.facts) from error
    except BaseException as error:
        place = place_of(error)
        reason = " ".join(str(error).split())[:300]
        if isinstance(error, SyntaxError):
            reason = str(error.msg)  # its text repeats the place
        said = f"{what} raised {type(error).__name__}: {reason}{_hint(error)}"
        raise UserError(said + (f" ({place})" if place else "")) from error


def place_of(error: BaseException) -> str:
    """Returns FILE:LINE of the innermost code of the user's own; "" if none was running."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _of_user(Path(frame.filename)):
            return f"{frame.filename}:{frame.lineno}{_edited(Path(frame.filename))}"
    return ""


def _edited(file: Path) -> str:
    """Returns a warning if a user's file was changed after it was imported, since line numbers may
    be wrong."""
    made = sys.modules.get(f"{PREFIX}{file.stem}")
    if getattr(made, "__file__", None) != str(file):
        return ""
    is_other = getattr(made, READ, None) != file.stat().st_mtime_ns
    return ", as it was before it was edited" if is_other else ""


def _of_user(file: Path) -> bool:
    """Whether a file belongs neither to a library nor to a package beside r3l."""
    path = file.resolve()
    if not path.is_file() or str(path).startswith(LIBRARIES):
        return False
    package = path.relative_to(ROOT).parts[0] if path.is_relative_to(ROOT) else ""
    return not (package and (ROOT / package / "__init__.py").is_file())


def _hint(error: BaseException) -> str:
    """Explains two errors: says how a text begins that is not JSON, and where a package is that
    lacks a module, since a package of the user's may have the same name."""
    if isinstance(error, json.JSONDecodeError):
        return f"; the text begins {' '.join(error.doc.split())[:BEGINNING]!r}"
    package, dot, _ = str(getattr(error, "name", "")).partition(".")
    file = getattr(sys.modules.get(package), "__file__", None)
    if not (isinstance(error, ModuleNotFoundError) and dot and file):
        return ""
    return f" ({package} is {Path(file).parent}; a package of yours needs another name)"
