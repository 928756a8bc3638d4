"""Resolves a user's path. Reads a user's text file, as a whole or as JSON lines."""

import json
from pathlib import Path
from typing import Any

from r3l.errors import UserError

SETTINGS_LIMIT = 256 << 10  # bytes of a file of settings, which is parsed slowly


def user_path(name: str) -> Path:
    """Resolves `~` in the user's path. Raises UserError if no such path can exist."""
    try:
        path = Path(name).expanduser()
        path.exists()  # a name too long raises
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"path {name!r:.100}: not a valid path ({reason:.60})") from None
    return path


def read_text(path: Path, what: str, remedy: str, limit: int | None = SETTINGS_LIMIT) -> str:
    """Reads a UTF-8 file and drops a byte-order mark. Raises UserError if the file cannot be read,
    is a pipe or a device, or has more than `limit` bytes. `what`: how the message begins."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{what}: is a pipe or a device, not a file; save it as a file")
        if limit is not None and (size := path.stat().st_size) > limit:
            raise UserError(f"{what}: has {size} bytes, more than {limit}; {remedy}")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{what}: cannot be read ({error.strerror}); {remedy}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{what}: not UTF-8 text (line {line}); if it is text in Latin-1, convert it with "
            f"iconv -f latin1 -t utf-8; {remedy}"
        ) from None


def numbered_lines(path: Path, what: str, remedy: str) -> list[tuple[int, str]]:
    """Returns the number and text of each non-empty line. Raises UserError as `read_text` does."""
    # Not splitlines: JSON text may contain U+2028 and U+0085.
    lines = read_text(path, what, remedy, limit=None).split("\n")
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def json_lines(file: str | Path, *needed: str) -> list[dict[str, Any]]:
    """Reads a file with one JSON object a line. Skips empty lines. Raises UserError, with the
    number of the line, for a line that is not a JSON object or lacks one of the `needed` keys."""
    path = Path(file).expanduser()
    rows = []
    for number, line in numbered_lines(path, f"data {path}", "write one JSON object a line"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"data {path}, line {number}: is not JSON ({error})") from None
        if not isinstance(row, dict):
            raise UserError(f"data {path}, line {number}: must be a JSON object, not {line:.60}")
        if lacks := [repr(key) for key in needed if key not in row]:
            raise UserError(
                f"data {path}, line {number}: has no {' and no '.join(lacks)}; it has "
                f"{', '.join(row) or 'nothing'}"
            )
        rows.append(row)
    return rows
