"""Temporary folders that never stay behind: they are removed with everything in them, even if their
process is killed.

A folder of `held_folder` is locked while its process lives. `remove_left` removes folders whose
process has ended without removing them.
"""

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

HELD = "-held"
"""End of the name of a folder that is locked while its process lives."""
LOCKED_S = 60.0
"""An unlocked folder that is older than this many seconds belongs to a dead process."""
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW


def held_folder(prefix: str) -> tuple[Path, int]:
    """Makes a temporary folder. Returns its path and its descriptor, which holds the lock."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=HELD))
    lock = os.open(folder, os.O_RDONLY | _FOLDER)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def remove_left(prefix: str, parent: Path | None = None, suffix: str = HELD) -> None:
    """Removes the folders of killed processes."""
    for folder in (parent or Path(tempfile.gettempdir())).glob(f"{prefix}*{suffix}"):
        with suppress(OSError):  # it is locked, or another user's
            lock = os.open(folder, os.O_RDONLY | _FOLDER)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(lock).st_mtime > LOCKED_S:
                    remove_tree(folder)
            finally:
                os.close(lock)


def remove_tree(path: str | Path, dir_fd: int | None = None) -> None:
    """Removes a folder, or whatever has its name. Follows no link. A tree may have any depth, and
    its folders need not be readable. Leaves what this user may not remove, and raises nothing.

    `dir_fd`: the open folder that `path` is relative to.
    """
    with suppress(OSError):
        with suppress(NotADirectoryError):
            with _opened(path, dir_fd) as top:
                empty_folder(top)
            os.rmdir(path, dir_fd=dir_fd)
            return
        os.unlink(path, dir_fd=dir_fd)


def empty_folder(top: int) -> None:
    """Removes all that is in an open folder. Moves each inner folder up to the top, so that neither
    the stack nor a path grows with the depth."""
    removed = True
    while removed:
        removed = False
        for name, is_folder in _entries(top):
            with suppress(OSError):
                if is_folder:
                    _lift(name, top)
                    os.rmdir(name, dir_fd=top)
                else:
                    os.unlink(name, dir_fd=top)
                removed = True


def _lift(name: str, top: int) -> None:
    """Removes the files of a folder in `top`, and moves its folders up to `top`."""
    with _opened(name, top) as folder:
        for inner, is_folder in _entries(folder):
            with suppress(OSError):
                if is_folder:
                    with _opened(inner, folder):  # a closed one cannot be moved
                        os.rename(inner, uuid4().hex, src_dir_fd=folder, dst_dir_fd=top)
                else:
                    os.unlink(inner, dir_fd=folder)


def _entries(folder: int) -> list[tuple[str, bool]]:
    """Lists an open folder: names, and whether they are folders."""
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


@contextmanager
def _opened(path: str | Path, dir_fd: int | None) -> Iterator[int]:
    """Opens a folder, even one whose rights its user has taken away. Follows no link."""
    place = os.open(path, os.O_PATH | _FOLDER, dir_fd=dir_fd)
    try:
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        with suppress(OSError):  # it is another user's
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(f"/proc/self/fd/{place}", mode | stat.S_IRWXU)
        folder = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(place)
    try:
        yield folder
    finally:
        os.close(folder)
