"""What a library must offer for a run: names, parameters of functions, attributes of instances.

A newer library may rename what we use, private names most of all. Found at the start, that is one
line; found later, it is a traceback in the middle of a run, or a wrong checkpoint.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from r3l.errors import UserError


def check_library(distributions: Iterable[str], known: str, used: Iterable[str]) -> None:
    """Raise UserError, one line, that names what an installed library lacks of `used`.

    `distributions`: names under which it may be installed; `known`: the version that we know.
    Entries are `module:name.name`, with `(parameter, …)` for what a function must take by name, or
    with `~name` for an attribute that the module's source must mention.
    """
    missing = [entry for entry in used if not _offers(entry)]
    if not missing:
        return
    found = [(name, version) for name in distributions if (version := _version(name))]
    name, version = found[0] if found else (next(iter(distributions)), "of an unknown version")
    raise UserError(
        f"{name} {version}: lacks {', '.join(missing)}, which r3l uses; install {name}=={known}"
    )


def _offers(entry: str) -> bool:
    path, attribute, mentioned = entry.partition("~")
    path, _, parameters = path.rstrip(")").partition("(")
    module, _, names = path.partition(":")
    try:
        held: Any = importlib.import_module(module)
        for name in filter(None, names.split(".")):
            held = getattr(held, name)
        if attribute:
            return mentioned in Path(inspect.getfile(held)).read_text(encoding="utf-8")
        if not parameters:
            return True
        taken = inspect.signature(held).parameters
    except (ImportError, AttributeError, ValueError, TypeError):
        return False
    wanted = {name.strip() for name in parameters.split(",")}
    return wanted <= taken.keys() or any(one.kind is one.VAR_KEYWORD for one in taken.values())


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
