"""Writes files and folders whole or not at all, even if the process or the machine dies.

write under another name ─► flush to disk ─► rename ─► flush the folder
"""

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from r3l.errors import UserError
from r3l.files.checksums import with_checksum, without_checksum

log = logging.getLogger(__name__)
T = TypeVar("T")
BUILDING = ".building-"
"""Prefix of the name of an unfinished file or folder."""


def write_whole(path: Path, content: str | bytes | Iterable[bytes | memoryview]) -> None:
    """Writes a file. Any old content stays until the new content is on disk. Among several writers,
    the last one wins. Raises OSError."""
    if isinstance(content, str):
        content = content.encode()
    parts = [content] if isinstance(content, bytes) else content
    building = path.with_name(f"{BUILDING}{path.name}-{uuid4().hex[:8]}")
    try:
        with building.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        building.replace(path)
    finally:
        building.unlink(missing_ok=True)
    flush(path.parent)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes an object and its checksum to a JSON file, whole or not at all. Raises OSError."""
    write_whole(path, json.dumps(with_checksum(values), indent=2) + "\n")


def read_json(path: Path, remedy: str, kind: type[T]) -> T | None:
    """Reads a JSON file. Returns None for a missing or empty file. Raises UserError for a damaged
    or unreadable file. `remedy`: how the message ends."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    if not data:
        log.warning("%s is empty, perhaps after a power loss; it is treated as missing", path)
        return None
    try:
        values = without_checksum(json.loads(data))
        return msgspec.convert(values, kind)  # its ValidationError is a ValueError
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error!s:.80}); {remedy}") from None


@contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """Yields a new folder to fill. After the `with` block, renames the folder to `final`. After an
    error, deletes the folder. Raises OSError."""
    building = final.absolute().with_name(f"{BUILDING}{final.name}")
    shutil.rmtree(building, ignore_errors=True)  # a killed process may have left it
    building.mkdir(parents=True)
    try:
        yield building
        rename_whole(building, final)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def rename_whole(building: Path, final: Path) -> None:
    """Flushes the file or folder `building` to disk, then renames it to `final`. Raises OSError."""
    _flush_whole(building)
    building.rename(final)
    flush(final.absolute().parent)


def replace_folder(building: Path, final: Path) -> None:
    """Puts the folder `building` in the place of `final`, by two renames. Removes an old `final`
    only when the new folder is on disk. If the process is killed between the renames, the next call
    brings the old folder back. Raises OSError."""
    replaced = final.with_name(f".replaced-{final.name}")
    if replaced.exists() and not final.exists():
        replaced.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)
    _flush_whole(building)
    if final.exists():
        final.rename(replaced)
    rename_whole(building, final)
    shutil.rmtree(replaced, ignore_errors=True)


def _flush_whole(building: Path) -> None:
    inside = sorted(building.rglob("*")) if building.is_dir() else []
    for path in (*inside, building):
        if not path.is_symlink():
            flush(path)


def flush(place: Path) -> None:
    """Flushes a file, or a folder's list of names, to disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
