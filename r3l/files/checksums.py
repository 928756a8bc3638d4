"""Checksums of files and of JSON values, so that damage is always noticed.

    {"step": 3, "time": 1.5, "checksum": "8f3c0d…"}

The checksum of a value covers what it means, not how it is spaced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xxhash import xxh3_64, xxh3_64_hexdigest

CHECKSUM = "checksum"
BLOCK = 1 << 20
SEALED_TEXT = "# checksum "
"""The beginning of a text with a checksum."""


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values with their checksum as the last one."""
    return {**values, CHECKSUM: of_text(json.dumps(values))}


def unsealed(values: Any) -> dict[str, Any]:
    """Returns the values without their checksum. Raises ValueError if it is missing or wrong."""
    if not isinstance(values, dict):
        raise ValueError("not an object")
    if (found := values.pop(CHECKSUM, None)) is None:
        raise ValueError("no checksum")
    if found != of_text(json.dumps(values)):
        raise ValueError("wrong checksum")
    return values


def sealed_text(text: str) -> str:
    """Puts a line with its checksum, as a comment, in front of a text of several lines."""
    return f"{SEALED_TEXT}{of_text(text)}; to edit the lines below, remove this one\n{text}"


def check_text(text: str) -> None:
    """Raises ValueError if a text begins with a checksum that is wrong."""
    head, _, rest = text.partition("\n")
    if head.startswith(SEALED_TEXT) and text != sealed_text(rest):
        raise ValueError("wrong checksum in its first line; after an edit, remove that line")


def of_text(text: str) -> str:
    """Computes the checksum of a text."""
    return xxh3_64_hexdigest(text.encode())


def of_file(path: Path) -> str:
    """Computes the checksum of a file. Raises OSError."""
    total = xxh3_64()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            total.update(block)
    return total.hexdigest()
