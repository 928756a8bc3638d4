"""Saves an agent's folder before each call, and restores it to a saved state.

    save:     copies new file contents to objects/, then writes the folder's listing to NUMBER.json
    restore:  writes the files that differ, removes new files, then compares the folder's listing

The user's commands save and restore state outside the folder. The save command runs before the
folder is saved. The restore command runs before the listing is compared. The worker process copies
a small folder itself, if there is no command. Otherwise call_function starts a process.
"""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from contextlib import suppress
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
VANISHED = (FileNotFoundError, NotADirectoryError)

Listing = dict[str, list[Any]]
"""Paths in the folder, each with its kind (file, folder or link), mode, and hash or target."""


def run(operation: str, work: str, kept: str, number: int, command: list[str]) -> dict[str, int]:
    """Saves or restores the folder `work`. Returns the size of `kept` after a save, otherwise 0."""
    place = Path(kept)
    (place / "objects").mkdir(parents=True, exist_ok=True)
    file = place / f"{number}.json"
    if operation == "save":
        said = _told(command, place / f"{number}.d")
        known = _read(place / KNOWN) or {"at": 0, "files": {}}
        began, seen = time.time_ns(), Seen(known)
        listing = listed(Path(work), seen, place / "objects")
        (place / KNOWN).write_text(json.dumps({"at": began, "files": seen.files}))
        file.write_text(json.dumps({"files": listing, "said": said}))
        size = sum(path.lstat().st_size for path in place.rglob("*"))
        if size > MOST_BYTES:
            sys.exit(f"the attempt's snapshots together take more than {MOST_BYTES} bytes")
        return {"bytes": size}
    wanted = _read(file)
    if wanted is None:
        sys.exit("the folder was not saved before this call")
    put_back(Path(work), wanted["files"], place / "objects")
    said = _told(command, place / f"{number}.d")
    if said != wanted["said"]:
        sys.exit(f"restore printed {said!r:.200}, but snapshot printed {wanted['said']!r:.200}")
    if difference := first_difference(wanted["files"], listed(Path(work))):
        sys.exit(f"after restore, {difference}")
    return {"bytes": 0}


class Seen:
    """The files of this save, and the files of the previous save."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.before, self.at = known["files"], known["at"]
        self.files: dict[str, Any] = {}

    def content(self, path: Path, name: str, info: os.stat_result, objects: Path) -> str:
        """Returns the hash of a file's content. Copies the content to `objects` if it is new."""
        state = [info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]
        old = self.before.get(name)
        unchanged = old and old[0] == state and info.st_ctime_ns < self.at - RACE_NS
        hashed = str(old[1]) if unchanged else _hash(path)
        self.files[name] = [state, hashed]
        if not (objects / hashed).exists():
            shutil.copyfile(path, objects / "new")
            os.rename(objects / "new", objects / hashed)
        return hashed


def listed(work: Path, seen: Seen | None = None, objects: Path = Path()) -> Listing:
    """Lists a folder. With `seen`, also copies the files' contents to `objects`. Raises SystemExit
    if the folder is too large."""
    listing: Listing = {}
    size, waiting = 0, [work]
    while waiting:
        entries: list[os.DirEntry[str]] = []
        with suppress(*VANISHED):
            entries = sorted(os.scandir(waiting.pop()), key=lambda entry: entry.name)
        for entry in entries:
            with suppress(*VANISHED):
                path, info = Path(entry.path), entry.stat(follow_symlinks=False)
                name, mode = str(path.relative_to(work)), stat.S_IMODE(info.st_mode)
                if entry.is_symlink():
                    listing[name] = ["link", 0, os.readlink(path)]
                elif entry.is_dir():
                    listing[name] = ["folder", mode, ""]
                    waiting.append(path)
                elif entry.is_file():
                    size += info.st_size
                    if size > MOST_BYTES or len(listing) >= MOST_FILES:
                        most = f"{MOST_BYTES} bytes or {MOST_FILES} files"
                        sys.exit(f"the folder has more than {most}")
                    content = seen.content(path, name, info, objects) if seen else _hash(path)
                    listing[name] = ["file", mode, content]
    return listing


def put_back(work: Path, wanted: Listing, objects: Path) -> None:
    """Makes a folder match `wanted`. Removes files that `wanted` does not list. Overwrites changed
    files. But if a changed file has other hard links, replaces it by a new file."""
    found = listed(work)
    for name, (kind, mode, _) in found.items():
        if kind == "folder":
            (work / name).chmod(mode | stat.S_IRWXU)
    for name in sorted(found, reverse=True):  # what is in a folder before the folder
        if name not in wanted or wanted[name][0] != found[name][0]:
            remove = shutil.rmtree if found.pop(name)[0] == "folder" else os.unlink
            remove(work / name)  # with its sockets and pipes
    for name, entry in sorted(wanted.items()):
        kind, mode, content = entry
        path = work / name
        if found.get(name) == entry or (kind == "folder" and name in found):
            continue
        if kind != "file" or name not in found or path.stat().st_nlink > 1:
            path.unlink(missing_ok=True)  # a socket or pipe, too
        if kind == "link":
            path.symlink_to(content)
        elif kind == "folder":
            path.mkdir()
        else:
            if path.exists():
                path.chmod(mode | stat.S_IWUSR)
            shutil.copyfile(objects / content, path)
            path.chmod(mode)
    for name, (kind, mode, _) in sorted(wanted.items(), reverse=True):
        if kind == "folder":
            (work / name).chmod(mode)


def is_small(work: str) -> bool:
    """Returns whether a folder is small enough (SMALL) to be copied in the worker process."""
    files = size = 0
    for folder, inner, names in os.walk(work):
        files += len(inner) + len(names)
        if files > SMALL[0]:
            return False
        with suppress(*VANISHED):
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


def _told(command: list[str], own: Path) -> str:
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


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None
