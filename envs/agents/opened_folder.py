"""A folder of an attempt, opened once. Links that an agent puts in its place or into it are not
followed.

attempt's folder   work (the agent's), and the files of the agent's process
NAME-…             the files of another process, such as an MCP server, in the attempt's folder
"""

import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from r3l.files.temporary_folder import empty_folder, remove_tree

FOLDER = "r3l-agent-"
"""Beginning of the name of an attempt's temporary folder."""
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class OpenedFolder:
    """An open folder. `path`: where it was when it was opened. `fd`: its descriptor, closed by
    `close`."""

    def __init__(self, path: Path, fd: int | None = None) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        self.path, self.fd = path, os.open(path, flags) if fd is None else fd

    def inner(self, name: str) -> "OpenedFolder":
        """Makes a new folder in this one. The new folder's name begins with `name`."""
        full = f"{name}-{uuid4().hex[:8]}"
        os.mkdir(full, 0o700, dir_fd=self.fd)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        return OpenedFolder(self.path / full, os.open(full, flags, dir_fd=self.fd))

    def file(self, name: str, content: str = "") -> int:
        """Makes a new file, in place of whatever has its name. Returns its descriptor."""
        self.remove(name)
        fd = os.open(name, _NEW, 0o600, dir_fd=self.fd)
        with open(fd, "w", encoding="utf-8", closefd=False) as file:
            file.write(content)
        return fd

    def pipe(self, name: str) -> None:
        """Makes a new FIFO, in place of whatever has its name."""
        self.remove(name)
        os.mkfifo(name, 0o600, dir_fd=self.fd)

    def link(self, name: str, target: str) -> None:
        os.symlink(target, name, dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Removes whatever has a name in this folder."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return
        except OSError:
            remove_tree(name, dir_fd=self.fd)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.fd)

    def delete(self) -> None:
        """Removes the folder's contents, even if the folder was moved, and whatever is now at its
        path."""
        with suppress(OSError):
            os.fchmod(self.fd, 0o700)
            empty_folder(self.fd)
        remove_tree(self.path)
        self.close()
