"""Archive files: closed groups as Parquet, in a local folder or at any fsspec address.

    records ─► a file in memory ─► under another name, flushed, renamed │ uploaded
                                        └─► read back, compared ─► a place for each group

A file never changes, and r3l deletes none. It has one line for each group: facts for other
programs, the encoded record, and the record's digest. Every read compares the digest.
"""

import errno
import io
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from xxhash import xxh3_128_hexdigest

from buffer.storage.stored_rows import ArchivePlace, GroupRow
from r3l.errors import StoreError, UserError
from r3l.files.whole_file import write_whole
from r3l.run.process.free_space import DISK_FLOOR

ARCHIVE = "archive"
"""The cause of errors of an archive."""
NEEDS = "buffer.archive needs pyarrow: pip install 'r3l[archive]'"
ROW_GROUP_BYTES = 1 << 20  # of records that are read together
OPEN_FILES, OPEN_ROWS = 8, 4  # that stay open for the next read


class Archive:
    """The files at one address. Threads may share it. Raises UserError if a library is missing, or
    if the address is of no known kind."""

    def __init__(self, address: str) -> None:
        self.local = Path(address).expanduser().absolute() if "://" not in address else None
        self.address = str(self.local or address)
        self._fs: Any = None
        self._root = ""
        if not self.local:
            self._fs, self._root = _file_system(address)
        _pyarrow()
        self._lock = threading.Lock()
        self._files: OrderedDict[str, Any] = OrderedDict()
        self._rows: OrderedDict[tuple[str, int], Any] = OrderedDict()

    def add(self, groups: Sequence[tuple[GroupRow, bytes]]) -> dict[str, ArchivePlace]:
        """Writes a file of groups and their encoded records, and returns their places by id. The
        same groups give the same file name. Raises StoreError; the file must then not be used."""
        digests = [xxh3_128_hexdigest(record) for _, record in groups]
        names = [row.group_id for row, _ in groups]
        name = f"{names[0]}-{names[-1]}-{_digest_of(names + digests)}.parquet"
        try:
            data, at = _parquet(groups, digests)
            self._write(name, data)
            if self._read(name) != data:
                raise self._error(name, "differs from what was written", "differs")
        except StoreError:
            raise
        except Exception as error:  # whatever a file system of fsspec raises
            raise self._failed(name, error) from error
        places = zip(names, at, digests, strict=True)
        return {each: ArchivePlace(name, *place, digest) for each, place, digest in places}

    def record(self, group_id: str, place: ArchivePlace) -> bytes:
        """Returns an archived record. Raises StoreError if it is missing or damaged."""
        try:
            with self._lock:
                rows = self._rows_of(place)
            record: bytes = rows.column("record")[place.row].as_py()
        except Exception as error:  # of pyarrow, or of a file system
            raise self._failed(place.file, error, group_id) from error
        if xxh3_128_hexdigest(record) != place.digest:
            raise self._error(place.file, "is damaged (digest)", "damaged", group_id)
        return record

    def _rows_of(self, place: ArchivePlace) -> Any:
        """Returns the lines of a row group. Keeps those that were read last."""
        key = place.file, place.row_group
        if key not in self._rows:
            if place.file not in self._files:
                self._files[place.file] = _pyarrow().ParquetFile(self._opened(place.file))
                if len(self._files) > OPEN_FILES:
                    self._files.popitem(last=False)[1].close(force=True)
            file = self._files[place.file]
            self._rows[key] = file.read_row_group(place.row_group, columns=["record"])
            if len(self._rows) > OPEN_ROWS:
                self._rows.popitem(last=False)
        return self._rows[key]

    def _opened(self, name: str) -> Any:
        if self.local:
            return open(self.local / name, "rb")  # its ParquetFile closes it
        return self._fs.open(f"{self._root}/{name}", "rb")

    def _write(self, name: str, data: bytes) -> None:
        if self.local:
            self.local.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self.local).free < DISK_FLOOR + len(data):
                raise OSError(errno.ENOSPC, "too little space is left on the disk")
            write_whole(self.local / name, data)
            return
        self._fs.makedirs(self._root, exist_ok=True)
        self._fs.pipe_file(f"{self._root}/{name}", data)

    def _read(self, name: str) -> bytes:
        if self.local:
            return (self.local / name).read_bytes()
        self._fs.invalidate_cache()
        return bytes(self._fs.cat_file(f"{self._root}/{name}"))

    def _failed(self, name: str, error: Exception, group_id: str = "") -> StoreError:
        what = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        return self._error(name, f"{what!s:.200}", _kind(error), group_id)

    def _error(self, name: str, what: str, kind: str, group_id: str = "") -> StoreError:
        where = f"group {group_id}: " if group_id else ""
        why = f"{where}archive {self.address}, file {name}: {what}"
        if group_id:
            why += "; put the file back, or serve the store with buffer.archive=… if it was moved"
        return StoreError(why, cause=ARCHIVE, kind=kind)


def _digest_of(texts: Sequence[str]) -> str:
    return xxh3_128_hexdigest("".join(texts).encode())[:16]


def _kind(error: Exception) -> str:
    """Returns a word for what is wrong with an archive."""
    if isinstance(error, FileNotFoundError):
        return "missing"
    if isinstance(error, PermissionError):
        return "not_writable"
    number = getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    if number in (errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return "not_writable"
    broken = type(error).__name__.startswith("Arrow")  # pyarrow's own errors
    return "damaged" if broken or isinstance(error, LookupError | ValueError) else "unreachable"


def _parquet(
    groups: Sequence[tuple[GroupRow, bytes]], digests: Sequence[str]
) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns a file, and the row group and the line of each group in it."""
    import pyarrow as pa

    file, at = io.BytesIO(), list[tuple[int, int]]()
    lines = [
        _line(row, record, digest) for (row, record), digest in zip(groups, digests, strict=True)
    ]
    schema = pa.schema([(name, _type(pa, name)) for name in lines[0]])
    with _pyarrow().ParquetWriter(file, schema, compression="zstd") as writer:
        for number, part in enumerate(_parts(lines)):
            writer.write_table(pa.Table.from_pylist(part, schema=schema), row_group_size=len(part))
            at += [(number, line) for line in range(len(part))]
    return file.getvalue(), at


def _line(row: GroupRow, record: bytes, digest: str) -> dict[str, Any]:
    return {
        "group_id": row.group_id,
        "task_id": row.task_id,
        "env": row.env,
        "purpose": row.purpose,
        "tag": row.tag,
        "state": row.state,
        "cause": row.cause,
        "source": row.source,
        "version": row.oldest_version,
        "rewards": list(row.rewards),
        "steps": list(row.steps),
        "closed": row.times[row.state],
        "digest": digest,
        "record": record,
    }


def _type(pa: Any, name: str) -> Any:
    special = {
        "version": pa.int64(),
        "rewards": pa.list_(pa.float64()),
        "steps": pa.list_(pa.int64()),
        "closed": pa.float64(),
        "record": pa.large_binary(),
    }
    return special.get(name, pa.string())


def _parts(lines: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Cuts lines into parts of about ROW_GROUP_BYTES."""
    part, size = list[dict[str, Any]](), 0
    for line in lines:
        part.append(line)
        size += len(line["record"])
        if size >= ROW_GROUP_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise UserError(NEEDS) from None
    return pyarrow.parquet


def _file_system(address: str) -> tuple[Any, str]:
    """Returns the file system of an address, and the folder in it. Does not connect."""
    protocol = address.split("://")[0]
    try:
        import fsspec

        fsspec.get_filesystem_class(protocol)
        system, root = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise UserError(f"buffer.archive={address}: {error!s:.300}") from None
    return system, str(root).rstrip("/")
