"""Locks a store's folder. Refuses remote folders: LMDB needs a single owner and a local disk."""

import fcntl
import os
from pathlib import Path

import psutil

from r3l.errors import UserError

LOCK = "owner.lock"
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "9p", "beegfs"}
_REMOTE_PREFIX = "fuse."


def own(folder: Path) -> int:
    """Makes this process the only owner of the store in `folder`. Closing the returned file
    descriptor ends the ownership. Raises UserError if `folder` is unusable, remote or already
    owned."""
    lock = -1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_remote(folder)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Overwrite the last owner, since a full disk has no room for a new file.
        os.ftruncate(lock, os.pwrite(lock, f"{os.getpid()}\n".encode(), 0))
    except OSError as error:
        if lock >= 0:
            os.close(lock)
        raise _refusal(folder, error) from None
    return lock


def check_free(folder: Path) -> None:
    """Raises UserError if a process owns the store in `folder`. Writes nothing."""
    try:
        with (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _refusal(folder, error) from None
    except OSError:
        pass  # never owned, or `own` will say why it cannot be used


def _refusal(folder: Path, error: OSError) -> UserError:
    why = f"cannot be used ({error.strerror})"
    if isinstance(error, BlockingIOError):
        owner = (folder / LOCK).read_bytes()[:32].decode("ascii", "replace").strip() or "unknown"
        why = f"is already served by process {owner}; wait until that process has ended"
    return UserError(f"store {folder}: {why}")


def refuse_remote(folder: Path) -> None:
    """Raises UserError if `folder` is on a network file system."""
    place = folder.resolve()
    mounts = psutil.disk_partitions(all=True)
    above = [mount for mount in mounts if place.is_relative_to(mount.mountpoint)]
    kind = max(above, key=lambda mount: len(mount.mountpoint)).fstype if above else ""
    if kind in _REMOTE or kind.startswith(_REMOTE_PREFIX):
        raise UserError(
            f"store {folder}: is on {kind}, which makes memory-mapped files and locks unsafe; "
            "use a local disk"
        )
