"""Shows a process other files at some paths: its own root folder, made of mounts that it alone has.

    /usr, /etc, /home, …   those of this machine
    /app, /logs/agent      folders of the attempt (`binds`)
    /tests, /logs/verifier copies in memory, which no other process can open (`copies`)
    the user's tasks       an empty folder (`hidden`)
    /tmp                   its own, with what is there but the folders of attempts (`temporary`)

`enter` changes the calling process, which must have one thread. It needs no rights, only a kernel
that lets users make user and mount namespaces. After `lock`, the mounts cannot be removed, since
they belong to an outer user namespace. This file uses only the standard library, because
envs.agents.call_function loads it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from typing import TypedDict

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC = 2, 4, 4096, 16384
MS_UNBINDABLE, MS_PRIVATE = 1 << 17, 1 << 18
MNT_DETACH, PR_GET_DUMPABLE, PR_SET_DUMPABLE = 2, 3, 4
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
MOST_BYTES = 1 << 30
"""Most bytes of a folder in memory."""
OWN = ("app", "logs", "solution", "tests")
"""Folders of the root that this machine may have and a view never shows."""
ATTEMPTS = ("r3l-env-", "r3l-agent-", "r3l-snapshots-")
"""Beginnings of the names of attempts' temporary folders, including those of other workers and
runs."""


class View(TypedDict):
    """What a process sees. `root`: an empty folder, on which its root is mounted. `binds`: the path
    of a folder, and its path in the view. `copies`: the path of a folder, or "" for an empty one,
    and the path of its copy. `hidden`: folders that are empty. `temporary`: folders that are shown
    without the folders of attempts in them, outer folders first. `folder`: the working
    directory."""

    root: str
    binds: list[tuple[str, str]]
    copies: list[tuple[str, str]]
    hidden: list[str]
    temporary: list[str]
    folder: str


def enter(view: View) -> None:
    """Gives this process the view. Raises OSError."""
    _own_namespaces()
    _mount("", "/", MS_REC | MS_PRIVATE)
    root = view["root"]
    _mount("tmpfs", root, MS_NOSUID | MS_NODEV, "mode=755,size=16m")
    _mount("", root, MS_UNBINDABLE)  # else it would be in the bind of the folder that it is in
    own = {*OWN, view["folder"].split("/")[1]}
    _show("/", root, {entry for entry in os.listdir("/") if entry not in own})
    for folder in view["temporary"]:
        if os.path.isdir(root + folder):
            _show_without_attempts(folder, root)
    for path in view["hidden"]:
        if os.path.isdir(root + path):
            _mount("tmpfs", root + path, MS_NOSUID | MS_NODEV, "mode=755,size=4k")
    for source, target in view["binds"]:
        os.makedirs(root + target, exist_ok=True)
        _mount(source, root + target, MS_BIND | MS_REC)
    for source, target in view["copies"]:
        os.makedirs(root + target, exist_ok=True)
        _mount("tmpfs", root + target, MS_NOSUID | MS_NODEV, f"mode=755,size={MOST_BYTES}")
        if source:
            shutil.copytree(source, root + target, dirs_exist_ok=True)
    _become_root(root)
    os.chdir(view["folder"])


def lock() -> None:
    """Gives up the right to change the view. Raises OSError."""
    _own_namespaces()


def _own_namespaces() -> None:
    """Makes user and mount namespaces, in which this process has all rights and its own user."""
    user, group = os.geteuid(), os.getegid()
    dumpable = _prctl(PR_GET_DUMPABLE, 0)
    _call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    _prctl(PR_SET_DUMPABLE, 1)  # else the files below are root's
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    _prctl(PR_SET_DUMPABLE, dumpable)


def _show(folder: str, target: str, names: Iterable[str]) -> None:
    """Shows folders, files and links of a folder in another one. What cannot be mounted is left
    empty, such as a folder whose server does not answer."""
    for name in names:
        there, here = os.path.join(folder, name), os.path.join(target, name)
        with suppress(OSError):
            if os.path.islink(there):
                os.symlink(os.readlink(there), here)
                continue
            if os.path.isdir(there):
                os.mkdir(here)
            elif os.path.isfile(there):
                os.close(os.open(here, os.O_WRONLY | os.O_CREAT))
            else:
                continue
            _mount(there, here, MS_BIND | MS_REC)


def _show_without_attempts(folder: str, root: str) -> None:
    """Covers a folder of temporary files with another one, which lacks the attempts' folders."""
    _mount("tmpfs", root + folder, MS_NOSUID | MS_NODEV, f"mode=1777,size={MOST_BYTES}")
    _show(folder, root + folder, [n for n in os.listdir(folder) if not n.startswith(ATTEMPTS)])


def _become_root(root: str) -> None:
    """Makes a mount this process's root, and takes away the earlier one."""
    os.chdir(root)
    machine = os.uname().machine
    if machine not in SYS_PIVOT_ROOT:
        raise OSError(errno.ENOSYS, f"pivot_root: its number is not known for {machine}")
    _call("syscall", SYS_PIVOT_ROOT[machine], b".", b".")  # the earlier root lies on the new one
    _call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def _mount(source: str, target: str, flags: int, options: str = "") -> None:
    kind = b"tmpfs" if source == "tmpfs" else None
    given = os.fsencode(source) or None, os.fsencode(target), kind
    _call("mount", *given, ctypes.c_ulong(flags), options.encode() or None)


def _call(name: str, *arguments: object) -> None:
    """Calls a function of the C library. Raises OSError with its name."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _prctl(option: int, value: int) -> int:
    return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0))


def main() -> None:
    """Tries a view. Ends with an error message if this machine allows none."""
    with tempfile.TemporaryDirectory() as folder:
        view = View(root=folder, binds=[], copies=[("", "/app")], hidden=[], folder="/app",
                    temporary=[os.path.dirname(folder)])  # fmt: skip
        child = os.fork()
        if not child:
            try:
                enter(view)
                lock()
            except OSError as error:
                print(error.strerror, file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
