"""Saves an agent's folder before each call, and restores it to a saved state.

    save:     copies new file contents to objects/, then writes the folder's listing to NUMBER.json
    restore:  writes the files that differ, removes new files, then compares the folder's listing

The user's commands save and restore state outside the folder. The save command runs before the
folder is saved. The restore command runs before the listing is compared. The worker process copies
a small folder itself, if there is no command. Otherwise call_function starts a process.

The agent may change its folder meanwhile. So each file is reached from the open folder, only
through folders that are not links. If the agent puts something else in their place, it is neither
read nor changed. This file uses only the standard library, because call_function runs it without
r3l.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 30
"""The most bytes of the folder, and of all snapshots of an attempt together."""
MOST_FILES = 50_000
SMALL = 64, 1 << 20
"""The most files and bytes of a small folder. Copying one is faster than starting a process."""
KNOWN = "known.json"
"""The file about the last save: when it began (`at`), and each file's state and hash."""
RACE_NS = 1_000_000_000
"""If a file changes within this time before a save, its next change may keep the timestamp."""
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of a file or folder that has vanished, or that a link has replaced."""

Listing = dict[str, list[Any]]
"""Paths in the folder, each with its kind (file, folder or link), mode, and hash or target."""


def run(
    operation: str,
    work: str,
    kept: str,
    number: int,
    command: list[str],
    identity: Sequence[int] = (),
) -> dict[str, int]:
    """Saves or restores the folder `work`. Returns the size of `kept` after a save, otherwise 0.
    `identity`: the device and inode that the folder must have. Raises SystemExit or OSError."""
    place = Path(kept)
    (place / "objects").mkdir(parents=True, exist_ok=True)
    file = place / f"{number}.json"
    if operation == "save":
        said = _run_for_last_line(command, place / f"{number}.d")
        known = _read(place / KNOWN) or {"at": 0, "files": {}}
        began, seen = time.time_ns(), Seen(known)
        with _same_folder(work, identity) as root:
            listing = _listed(root, seen, place / "objects")
        (place / KNOWN).write_text(json.dumps({"at": began, "files": seen.files}))
        file.write_text(json.dumps({"files": listing, "said": said}))
        size = sum(path.lstat().st_size for path in place.rglob("*"))
        if size > MOST_BYTES:
            sys.exit(f"the attempt's snapshots together take more than {MOST_BYTES} bytes")
        return {"bytes": size}
    wanted = _read(file)
    if wanted is None:
        sys.exit("the folder was not saved before this call")
    with _same_folder(work, identity) as root:
        _put_back(root, wanted["files"], place / "objects")
        said = _run_for_last_line(command, place / f"{number}.d")
        if said != wanted["said"]:
            sys.exit(f"restore printed {said!r:.200}, but snapshot printed {wanted['said']!r:.200}")
        if difference := first_difference(wanted["files"], _listed(root)):
            sys.exit(f"after restore, {difference}")
    return {"bytes": 0}


class Seen:
    """The files of this save, and the files of the previous save."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.before, self.at = known["files"], known["at"]
        self.files: dict[str, Any] = {}

    def content(self, file: int, name: str, objects: Path) -> str:
        """Returns the hash of an open file's content. Copies it to `objects` if it is new."""
        info = os.fstat(file)
        state = [info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]
        old = self.before.get(name)
        unchanged = old and old[0] == state and info.st_ctime_ns < self.at - RACE_NS
        hashed = str(old[1]) if unchanged else _hash(file)
        self.files[name] = [state, hashed]
        if not (objects / hashed).exists():
            os.lseek(file, 0, os.SEEK_SET)
            with open(file, "rb", closefd=False) as given, (objects / "new").open("wb") as copy:
                shutil.copyfileobj(given, copy)
            os.rename(objects / "new", objects / hashed)
        return hashed


def listed(work: Path) -> Listing:
    """Lists a folder. Raises SystemExit if it is too large."""
    with _same_folder(str(work)) as root:
        return _listed(root)


def _listed(root: int, seen: Seen | None = None, objects: Path = Path()) -> Listing:
    """Lists an open folder. With `seen`, also copies the files' contents to `objects`."""
    listing: Listing = {}
    size, waiting = 0, [""]
    while waiting:
        inside = waiting.pop()
        with _unless_gone(), _folder_at(root, inside) as folder:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            for entry in entries:
                with _unless_gone():
                    info = entry.stat(follow_symlinks=False)
                    name, mode = os.path.join(inside, entry.name), stat.S_IMODE(info.st_mode)
                    if entry.is_symlink():
                        target = os.readlink(entry.name, dir_fd=folder)
                        listing[name] = ["link", 0, target]
                    elif entry.is_dir(follow_symlinks=False):
                        listing[name] = ["folder", mode, ""]
                        waiting.append(name)
                    elif entry.is_file(follow_symlinks=False):
                        size += info.st_size
                        if size > MOST_BYTES or len(listing) >= MOST_FILES:
                            most = f"{MOST_BYTES} bytes or {MOST_FILES} files"
                            sys.exit(f"the folder has more than {most}")
                        with _file_at(folder, entry.name) as file:
                            content = seen.content(file, name, objects) if seen else _hash(file)
                        listing[name] = ["file", mode, content]
    return listing


def _put_back(root: int, wanted: Listing, objects: Path) -> None:
    """Makes an open folder match `wanted`. Removes files that `wanted` does not list. Overwrites
    changed files. But if a changed file has other hard links, replaces it by a new file."""
    found = _listed(root)
    for name, (kind, mode, _) in found.items():
        if kind == "folder" and mode & stat.S_IRWXU != stat.S_IRWXU:
            _chmod(root, name, mode | stat.S_IRWXU)
    for name in sorted(found, reverse=True):  # what is in a folder before the folder
        if name not in wanted or wanted[name][0] != found[name][0]:
            kind = found.pop(name)[0]
            with _parent_of(root, name) as (folder, last):
                if kind == "folder":
                    _remove_folder(folder, last)
                else:
                    os.unlink(last, dir_fd=folder)
    for name, entry in sorted(wanted.items()):
        kind, mode, content = entry
        if found.get(name) == entry or (kind == "folder" and name in found):
            continue
        with _parent_of(root, name) as (folder, last):
            if kind == "file":
                _write(folder, last, objects / content, mode)
                continue
            with suppress(FileNotFoundError):
                os.unlink(last, dir_fd=folder)  # a socket or pipe, too
            if kind == "link":
                os.symlink(content, last, dir_fd=folder)
            else:
                os.mkdir(last, dir_fd=folder)
    for name, (kind, mode, _) in sorted(wanted.items(), reverse=True):
        if kind == "folder":
            _chmod(root, name, mode)


def _remove_folder(outer: int, name: str) -> None:
    """Removes a folder in which only sockets and pipes are left. Listings do not include these."""
    with _folder_at(outer, name) as folder:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
        for left in names:
            os.unlink(left, dir_fd=folder)
    os.rmdir(name, dir_fd=outer)


def _write(folder: int, name: str, content: Path, mode: int) -> None:
    """Writes a file in an open folder: the same file, if it has no other name."""
    file = _overwritten(folder, name, mode)
    if file is None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = os.open(name, new, 0o600, dir_fd=folder)
    with content.open("rb") as given, open(file, "wb") as copy:
        copy.truncate(0)
        shutil.copyfileobj(given, copy)
        os.fchmod(file, mode)


def _overwritten(folder: int, name: str, mode: int) -> int | None:
    """Opens a file to overwrite it. Returns None unless it is a regular file with a single hard
    link."""
    try:
        place = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        info = os.fstat(place)
        if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
            return None
        os.chmod(f"/proc/self/fd/{place}", mode | stat.S_IWUSR)
        return os.open(f"/proc/self/fd/{place}", os.O_WRONLY)
    finally:
        os.close(place)


def _chmod(root: int, name: str, mode: int) -> None:
    """Changes the mode of a folder. If a link has replaced the folder, does not change the link's
    target."""
    with _parent_of(root, name) as (folder, last):
        place = os.open(last, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{place}", mode)
        finally:
            os.close(place)


@contextmanager
def _same_folder(work: str, identity: Sequence[int] = ()) -> Iterator[int]:
    """Opens the agent's folder. Raises SystemExit if the agent has put something else in its place,
    before or meanwhile."""
    changed = "the agent has put something else in place of its folder"
    try:
        root = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        sys.exit(f"{changed} ({error.strerror})")
    try:
        opened = os.fstat(root)
        if identity and [opened.st_dev, opened.st_ino] != [*identity]:
            sys.exit(changed)
        yield root
        if not os.path.samestat(os.lstat(work), opened):
            sys.exit(changed)
    finally:
        os.close(root)


@contextmanager
def _folder_at(root: int, name: str) -> Iterator[int]:
    """Opens a folder below an open one. Each folder on the way must be a folder and not a link."""
    inner = os.O_DIRECTORY | os.O_NOFOLLOW
    *way, last = name.split("/") if name else ["."]
    folder = os.dup(root)
    try:
        for part in way:
            outer, folder = folder, os.open(part, os.O_PATH | inner, dir_fd=folder)
            os.close(outer)
        outer, folder = folder, os.open(last, os.O_RDONLY | inner, dir_fd=folder)
        os.close(outer)
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _parent_of(root: int, name: str) -> Iterator[tuple[int, str]]:
    """Opens the folder that holds a file. Yields it with the last part of the file's name."""
    way, _, last = name.rpartition("/")
    with _folder_at(root, way) as folder:
        yield folder, last


@contextmanager
def _file_at(folder: int, name: str) -> Iterator[int]:
    """Opens a file in an open folder to read it. What has replaced it is not read."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FileNotFoundError(errno.ENOENT, "replaced", name)
        yield file
    finally:
        os.close(file)


@contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _GONE:
            raise


def is_small(work: str) -> bool:
    """Returns whether a folder is small enough (SMALL) to be copied in the worker process."""
    files = size = 0
    for folder, inner, names in os.walk(work):
        files += len(inner) + len(names)
        if files > SMALL[0]:
            return False
        with suppress(OSError):
            size += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
    return size <= SMALL[1]


def first_difference(wanted: Listing, found: Listing) -> str:
    """Describes the first difference between two listings; "" if they are equal."""
    for name in sorted({*wanted, *found}):
        if name not in found:
            return f"{name} is missing"
        if name not in wanted:
            return f"{name} is in the folder, but not in the snapshot"
        if wanted[name] != found[name]:
            return f"{name} differs from the snapshot"
    return ""


def _run_for_last_line(command: list[str], own: Path) -> str:
    """Runs a command and returns its last line of output. `own`: a folder for the command, passed
    as R3L_SNAPSHOT. Raises SystemExit if the command fails."""
    if not command:
        return ""
    own.mkdir(exist_ok=True)
    variables = os.environ | {"R3L_SNAPSHOT": str(own)}
    ended = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        sys.exit(f"{command[0]} ended with exit code {ended.returncode}")
    return (ended.stdout.strip().splitlines() or [""])[-1]


def _hash(file: int) -> str:
    with open(file, "rb", closefd=False) as content:
        return hashlib.file_digest(content, "blake2b").hexdigest()


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None
