"""Writes a page to the file that a user names."""

from pathlib import Path

from r3l.errors import UserError
from r3l.files.whole_file import write_whole


def check_place(file: Path, option: str) -> None:
    """Raises UserError, before any work, if a file cannot be written there."""
    if file.is_dir():
        raise UserError(f"{option} {file}: is a folder; name a file, such as {file / 'page.html'}")
    if not file.absolute().parent.is_dir():
        raise UserError(f"{option} {file}: its folder does not exist; make it, or name another")


def write_page(file: Path, page: bytes, option: str) -> str:
    """Writes a page whole. Returns a line that says where it is. Raises UserError if it cannot be
    written."""
    try:
        write_whole(file, page)
    except OSError as error:
        raise UserError(
            f"{option} {file}: cannot be written ({error.strerror}); name another file"
        ) from None
    return f"{file}: {len(page) / 1024:,.0f} KiB; opens in any browser, without a network"
