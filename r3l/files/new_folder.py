"""Makes the folder that a user names for a result. Refuses one that holds anything."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from r3l.errors import R3LError, UserError
from r3l.files.whole_file import whole_folder


@contextmanager
def new_folder(folder: Path, what: str) -> Iterator[Path]:
    """Yields a temporary folder to fill, then renames it to `folder`. Raises UserError if `folder`
    is not empty or cannot be written. `what`: how the message begins."""
    check_new(folder, what)
    try:
        with whole_folder(folder) as building:
            yield building
    except R3LError:
        raise
    except OSError as error:
        raise UserError(f"{what} {folder}: cannot be written ({error.strerror})") from None


def check_new(folder: Path, what: str) -> None:
    """Raises UserError unless `folder` is empty or missing. Also refuses `.` and `/`."""
    if not folder.name:
        raise UserError(f"{what} {folder}: cannot be used; name a new folder inside it")
    if folder.is_file():
        raise UserError(f"{what} {folder}: is a file; choose a new folder")
    try:
        used = folder.exists() and any(folder.iterdir())
    except OSError as error:
        raise UserError(
            f"{what} {folder}: cannot be used ({error.strerror}); choose a new folder"
        ) from None
    if used:
        raise UserError(f"{what} {folder}: is not empty; choose a new folder")
