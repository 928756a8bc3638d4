"""Checksums of files, folders and JSON values, so that damage is always noticed.

    {"step": 3, "time": 1.5, "checksum": "8f3c0d…"}

The checksum of a value depends on its content, not on the spacing of its JSON text.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xxhash import xxh3_64, xxh3_64_hexdigest

CHECKSUM = "checksum"
BLOCK = 1 << 20
CHECKSUM_LINE = "# checksum "
"""The beginning of the line that holds a text's checksum."""


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values with their checksum added as the last entry."""
    return {**values, CHECKSUM: of_text(json.dumps(values))}


def without_checksum(values: Any) -> dict[str, Any]:
    """Returns the values without their checksum. Raises ValueError if it is missing or wrong."""
    if not isinstance(values, dict):
        raise ValueError("not an object")
    if (found := values.pop(CHECKSUM, None)) is None:
        raise ValueError("no checksum")
    if found != of_text(json.dumps(values)):
        raise ValueError("wrong checksum")
    return values


def text_with_checksum(text: str) -> str:
    """Adds a first line to a text: a comment with the text's checksum."""
    return f"{CHECKSUM_LINE}{of_text(text)}; to edit the lines below, remove this one\n{text}"


def check_text(text: str) -> None:
    """Raises ValueError if a text begins with a checksum that is wrong."""
    head, _, rest = text.partition("\n")
    if head.startswith(CHECKSUM_LINE) and text != text_with_checksum(rest):
        raise ValueError("the checksum in line 1 is wrong; if you edited the file, remove line 1")


def of_text(text: str) -> str:
    return xxh3_64_hexdigest(text.encode())


def of_file(path: Path, tick: Callable[[], None] = lambda: None) -> str:
    """Computes the checksum of a file; calls `tick` after each block. Raises OSError."""
    total = xxh3_64()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            total.update(block)
            tick()
    return total.hexdigest()


def of_folder(folder: Path) -> dict[str, tuple[int, str]]:
    """Computes (size, checksum) of each file in a folder and its subfolders, keyed by relative
    path. Raises OSError."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_size, of_file(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def damage(
    folder: Path,
    files: Mapping[str, tuple[int, str]],
    tick: Callable[[], None] = lambda: None,
    *,
    thorough: bool = True,
) -> str:
    """Returns the first difference between `folder` and `files` (see `of_folder`), or "". Without
    `thorough`, compares only sizes. Raises OSError."""
    for name, (size, checksum) in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            return f"{name} is missing or not {size} bytes long"
        if thorough and of_file(path, tick) != checksum:
            return f"{name} has the wrong checksum"
    return ""
