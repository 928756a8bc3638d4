"""The store: a folder with one LMDB file, and its transactions (tables in buffer.storage.layout).

Commits are synchronous: a committed transaction survives power loss. Only one process at a time can
open a store for writing.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import lmdb
import psutil
from lmdb import verify as lmdb_verify

from buffer.storage import folder_lock
from buffer.storage.archive_files import ARCHIVE, Archive
from buffer.storage.layout import LAST_READERS, SCHEMA, TABLES
from buffer.storage.store_path import check_store
from buffer.storage.stored_rows import ArchivePlace
from buffer.storage.transaction import Txn
from r3l import codec
from r3l.errors import SchemaVersionError, StoreError, UserError
from r3l.files.new_folder import check_new
from r3l.files.whole_file import flush, rename_whole, whole_folder
from r3l.run.process.process_list import every_process
from r3l.text import GIB

PAGE = 4096  # bytes of LMDB's pages
UNFINISHED = "new"  # folder in which the data file of a new store is made
OURS = {"owner.lock", "lock.mdb", UNFINISHED}  # what a store without data may hold
_NO_ROOM = (lmdb.DiskError, lmdb.Error)  # LMDB raises the system's errors as plain Error


class Store:
    """An open store. With `read_only`, the store can be opened while a service owns it.

    `map_gib`: limit of the file size in GiB. None: the size of its disk.
    """

    def __init__(
        self, folder: Path | str, *, map_gib: float | None = None, read_only: bool = False
    ) -> None:
        self.folder = folder = Path(folder)
        self._pid = os.getpid()
        self._archive: Archive | None = None
        if read_only:
            check_store(folder)
        _refuse_empty(folder)
        if not read_only:
            _refuse_other_files(folder)
        self._lock = None if read_only else folder_lock.own(folder)
        try:
            if not (folder / "data.mdb").exists():
                _create(folder)
            self._open(int(map_gib * GIB) if map_gib else _disk_bytes(folder), read_only)
        except lmdb.ReadersFullError:
            self._unlock()
            raise UserError(f"store {folder}: {self.readers_full}") from None
        except lmdb.Error as error:
            self._unlock()
            raise UserError(f"store {folder}: cannot be opened ({error})") from None
        except (SchemaVersionError, UserError):
            self._env.close()
            self._unlock()
            raise

    def _open(self, map_size: int, read_only: bool) -> None:
        self._env: Any = lmdb.open(
            str(self.folder),
            map_size=map_size,
            max_dbs=16,
            max_readers=1024,
            readahead=False,
            lib_version=0,  # one file format, whatever LMDB_DEFAULT_LIB_VERSION says
            readonly=read_only,
            subdir=True,
        )
        self._env.reader_check()  # dead programs may hold every place for readers
        found = os.stat(self.folder / "data.mdb")
        self._file = found.st_dev, found.st_ino
        self._refuse_cut_off(found.st_size)
        self._refuse_foreign()
        if not read_only and 0 < map_size < self._used_bytes:
            raise UserError(
                f"store {self.folder}: already takes {self._used_bytes / GIB:.3g} GiB, but "
                f"buffer.map_gib is {map_size / GIB:.3g}; raise it"
            )
        self._refuse_other_schema()
        self._tables = {name: self._env.open_db(name.encode(), create=False) for name in TABLES}

    def _refuse_other_schema(self) -> None:
        """Raises SchemaVersionError if the store has an older or newer schema."""
        schema = 0
        with suppress(lmdb.NotFoundError):
            self._tables = {"sys": self._env.open_db(b"sys", create=False)}
            with self.read() as txn:
                schema = txn.schema()
        if schema != SCHEMA:
            reader = LAST_READERS.get(schema)
            remedy = f"commit {reader} of r3l, the last one that reads it" if reader else "its r3l"
            raise SchemaVersionError(
                f"store {self.folder}: has schema {schema}, but this r3l reads only schema "
                f"{SCHEMA}; use {remedy}, or choose a new folder"
            )

    def _refuse_cut_off(self, size: int) -> None:
        """Raises UserError if the end of the file was cut off. Reading a missing page would kill
        the process."""
        with self._env.begin():  # keeps the pages that are checked from being reused
            whole = self._used_bytes
            if size < whole and lmdb_verify.verify(str(self.folder)):
                raise UserError(
                    f"store {self.folder}: data.mdb has only {size} of its {whole} bytes; copy the "
                    "original store again with r3l-buffer compact, which works on a store in use"
                )

    def _refuse_foreign(self) -> None:
        with self._env.begin() as raw:
            found = [key.decode("utf-8", "replace") for key, _ in raw.cursor()]
        if found and "sys" not in found:
            raise UserError(
                f"store {self.folder}: is another program's LMDB (it has the key "
                f"{found[0]!r:.40}); choose an empty folder"
            )

    @contextmanager
    def write(self) -> Iterator[Txn]:
        """Opens a durable write transaction, which saves all changes or none. Raises StoreError if
        the disk or the map is full."""
        self._refuse_fork()
        try:
            with self._env.begin(write=True) as raw:
                yield Txn(raw, self._tables, self._archived)
        except lmdb.MapFullError as error:
            raise StoreError(f"store {self.folder}: {self.map_used_up}", cause="disk") from error
        except lmdb.Error as error:
            cause = "disk" if type(error) in _NO_ROOM else "lmdb"
            raise StoreError(f"store {self.folder}: {error}", cause=cause) from error

    @contextmanager
    def read(self) -> Iterator[Txn]:
        """Opens a consistent view. Close it soon: old pages are not reused while it is open. Raises
        StoreError if other programs hold all places for readers."""
        self._refuse_fork()
        with self._view() as raw:
            yield Txn(raw, self._tables, self._archived)

    def _archived(self, address: str, group_id: str, place: ArchivePlace) -> bytes:
        """Reads an archived record. Raises StoreError."""
        if self._archive is None or self._archive.address != address:
            try:
                self._archive = Archive(address)
            except UserError as error:
                raise StoreError(f"group {group_id}: {error}", cause=ARCHIVE) from None
        return self._archive.record(group_id, place)

    def _view(self) -> Any:
        for attempt in range(2):
            try:
                return self._env.begin()
            except lmdb.ReadersFullError:
                if attempt:
                    why = f"store {self.folder}: {self.readers_full}"
                    raise StoreError(why, cause="readers") from None
                self.clear_readers()  # dead programs may hold them
        raise AssertionError("unreachable")

    @property
    def gone(self) -> bool:
        """True if the data file was moved or deleted. Writes would then be lost."""
        try:
            found = os.stat(self.folder / "data.mdb")
        except FileNotFoundError:
            return True
        return (found.st_dev, found.st_ino) != self._file

    @property
    def change(self) -> int:
        """Number of the last committed transaction. The number changes when the store changes."""
        return int(self._env.info()["last_txnid"])

    @property
    def disk_bytes(self) -> int:
        """Size of the data file on disk, in bytes."""
        return os.stat(self.folder / "data.mdb").st_blocks * 512

    @property
    def free_bytes(self) -> int:
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize

    def clear_readers(self) -> int:
        """Ends the read transactions of dead processes, so that freed pages can be used again.
        Returns how many it ended."""
        return int(self._env.reader_check())

    @property
    def map_bytes(self) -> int:
        """Largest allowed size of the file, in bytes."""
        return int(self._env.info()["map_size"])

    @property
    def readers_full(self) -> str:
        """The message for a store whose places for readers are taken, with what to do."""
        holders = ", ".join(_holders(self.folder / "lock.mdb")) or "unknown"
        return (
            "all places for readers are taken; these processes have it open: "
            f"{holders}; end one of them"
        )

    @property
    def map_used_up(self) -> str:
        """The message for a full map, with reason and remedy."""
        return (
            f"its map of {self.map_bytes / GIB:.3g} GiB is used up; serve the store with limits "
            "in buffer.retention or with a larger buffer.map_gib"
        )

    @property
    def map_free_bytes(self) -> int:
        """Room for the file to grow, in bytes. Does not count the file's free pages."""
        return self.map_bytes - self._used_bytes

    @property
    def _used_bytes(self) -> int:
        return (int(self._env.info()["last_pgno"]) + 1) * PAGE

    def copy(self, folder: Path) -> None:
        """Writes a compacted, consistent copy into `folder`. A service may use the store meanwhile.
        Raises UserError if `folder` is not empty, StoreError if the copy fails."""
        check_new(folder, "copy to")
        try:
            with whole_folder(folder) as building:
                self._env.copy(str(building), compact=True)
        except (lmdb.Error, OSError) as error:
            raise StoreError(f"copy to {folder}: {error}", cause="disk") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._env.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                f"store {self.folder}: was opened by the parent process; open it again here"
            )


def _create(folder: Path) -> None:
    """Creates the data file of a new store. The file appears with all its tables, or not at all."""
    partial = folder / UNFINISHED
    shutil.rmtree(partial, ignore_errors=True)
    with lmdb.open(str(partial), max_dbs=16, lib_version=0) as env:
        tables = {name: env.open_db(name.encode()) for name in TABLES}
        with env.begin(write=True) as raw:
            Txn(raw, tables).put("sys", b"schema", codec.pack({"schema": SCHEMA}))
    rename_whole(partial / "data.mdb", folder / "data.mdb")
    shutil.rmtree(partial)
    flush(folder.absolute().parent)


def _disk_bytes(folder: Path) -> int:
    """Returns a size that the file of a store cannot exceed. A map takes address space, no disk."""
    disk = os.statvfs(folder)
    size = (folder / "data.mdb").stat().st_size
    return max(disk.f_blocks * disk.f_frsize, 2 * size, GIB) // PAGE * PAGE


def _refuse_empty(folder: Path) -> None:
    """Raises UserError for an empty file, which LMDB would turn into a new store."""
    data = folder / "data.mdb"
    if data.exists() and data.stat().st_size == 0:
        raise UserError(
            f"store {folder}: data.mdb is empty (cut off); copy the original store again, or "
            "delete this file to start a new store"
        )


def _refuse_other_files(folder: Path) -> None:
    """Raises UserError if the folder holds other files instead of a store."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if "data.mdb" not in names and names - OURS:
        raise UserError(
            f"folder {folder}: holds {min(names - OURS)!r} but no store; choose an empty folder"
        )


def _holders(lock: Path) -> list[str]:
    """Returns the ids of the processes that have a store's lock open, if this user may see them."""
    found = []
    for process in every_process():
        with suppress(psutil.Error, OSError):
            if any(Path(file.path) == lock.resolve() for file in process.open_files()):
                found.append(str(process.pid))
    return found
