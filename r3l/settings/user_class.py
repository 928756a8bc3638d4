"""Finds classes by registry name, or the user's own by path: `my_rules.py:Recency`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from r3l.errors import UserError, did_you_mean

T = TypeVar("T")


def find(setting: str, name: str, registry: Mapping[str, type[T]], base: Any) -> type[T]:
    """Finds a class by name. Raises UserError, which names the `setting`, if the name is unknown or
    the file has no such subclass of `base`."""
    if name in registry:
        return registry[name]
    file, _, attribute = name.rpartition(":")
    if not file.endswith(".py"):
        raise UserError(
            f"{setting} {name!r:.80}: unknown{did_you_mean(name, registry)}; choose one of "
            f"{', '.join(registry)}, or path/to/file.py:Class"
        )
    kind: Any = getattr(_module(setting, Path(file).expanduser().resolve()), attribute, None)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise UserError(
            f"{setting} {name:.200}: {attribute!r} in that file is not a subclass of "
            f"{base.__name__}"
        )
    return kind


def _module(setting: str, path: Path) -> object:
    """Imports a file as a module, once. Any error in its code becomes a UserError."""
    name = f"r3l_user_{path.stem}"
    module = sys.modules.get(name)
    if module is not None and getattr(module, "__file__", None) == str(path):
        return module
    if not path.is_file():
        raise UserError(f"{setting}: file {path} does not exist")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file has both
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{setting}: importing {path} raised {type(error).__name__}: {reason}"
        ) from error
    return module
