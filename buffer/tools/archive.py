"""A store as files anybody can read, and back.

    FOLDER/
      manifest.json     format, schema, and of every file its rows and SHA-256
      tasks             TaskRow, in the order they were registered
      groups            Group, as it is now
      states            GroupRow of the same groups, in the same order
      draws, ledger     DrawRow, LedgerRow
      drops, counts     DropRow, CountRow
      tombs, progress   TombRow, Progress

Each file is a table of one record class, as JSON lines (buffer.tools.jsonl) or Parquet
(buffer.tools.parquet). Exporting what was imported gives the same bytes again. An export sees the
store at one moment; beside a busy service, `r3l-buffer compact` a copy first and export that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from buffer.storage import checksums
from buffer.storage.layout import SCHEMA
from buffer.storage.rows import DrawRow, Dropped, GroupRow, LedgerRow, Progress
from buffer.storage.store import Store
from buffer.storage.transaction import Txn
from buffer.tools import jsonl, parquet
from r3l import codec
from r3l.errors import R3LError, SchemaVersionError, StoreError, UserError
from r3l.records import Group, Purpose, Record, Task

FORMAT = "r3l-buffer-export"
GROUPS_AT_ONCE = 64  # of one transaction, and of one Parquet row group
T = TypeVar("T")


class TaskRow(Record):
    """A task and where it is registered."""

    purpose: Purpose
    tag: str
    index: int
    task: Task


class DropRow(Record):
    """How often what was lost (UnitOfWork.drop)."""

    cause: str
    what: Dropped
    task_id: str
    count: int


class CountRow(Record):
    """A figure the store keeps about itself (buffer.storage.counts)."""

    name: str
    number: int


class TombRow(Record):
    """A group that was evicted."""

    group_id: str


TABLES: dict[str, type[Any]] = {
    "tasks": TaskRow,
    "groups": Group,
    "states": GroupRow,
    "draws": DrawRow,
    "ledger": LedgerRow,
    "drops": DropRow,
    "counts": CountRow,
    "tombs": TombRow,
    "progress": Progress,
}


class Format(Protocol):
    """One way to write a table of records."""

    def write(self, path: Path, kind: type[T], records: Iterable[T]) -> int:
        """Write a file; returns how many rows."""

    def read(self, path: Path, kind: type[T]) -> Iterator[T]:
        """The records of a file."""


FORMATS: dict[str, Format] = {"jsonl": jsonl, "parquet": parquet}


def export(store: Store, folder: Path, name: str) -> dict[str, int]:
    """Write a store into an empty folder in a format of FORMATS; returns rows by table.

    All of it or nothing: raises StoreError for a disk that is full, RecordError for a group that
    was damaged.
    """
    _make_empty(folder)
    try:
        return _export(store, folder, name)
    except BaseException as error:
        for path in folder.iterdir():
            path.unlink()
        if isinstance(error, OSError):
            raise StoreError(f"export to {folder}: {error}", cause="disk") from None
        raise


def _export(store: Store, folder: Path, name: str) -> dict[str, int]:
    files: dict[str, dict[str, Any]] = {}
    with store.read() as txn:
        for table, kind in TABLES.items():
            path = folder / f"{table}.{name}"
            rows = FORMATS[name].write(path, kind, _GET[table](txn))
            files[table] = {"file": path.name, "rows": rows, "sha256": _digest(path)}
    manifest = {"format": FORMAT, "schema": SCHEMA, "encoding": name, "tables": files}
    text = json.dumps(manifest, indent=2) + "\n"
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    return {table: file["rows"] for table, file in files.items()}


def restore(folder: Path, target: Store) -> dict[str, int]:
    """Write an export into an empty store; returns rows by table."""
    manifest = check(folder)
    with target.read() as txn:
        if txn.count("state") or txn.count("task"):
            raise UserError(f"store {target.folder}: is not empty; import into a new folder")
    form, files = FORMATS[manifest["encoding"]], manifest["tables"]
    rows = {table: form.read(folder / files[table]["file"], TABLES[table]) for table in TABLES}
    pairs = zip(rows.pop("states"), rows.pop("groups"), strict=True)
    while some := list(islice(pairs, GROUPS_AT_ONCE)):
        with target.write() as txn:
            for row, group in some:
                _put_group(txn, row, group)
    with target.write() as txn:  # the last to be written: until then the store has no figures
        for table, records in rows.items():
            for record in records:
                _PUT[table](txn, record)
    return {table: file["rows"] for table, file in files.items()}


def _tasks(txn: Txn) -> Iterator[TaskRow]:
    for key, data in txn.scan("task"):
        purpose, tag, index = key.split(b"\0", 2)
        yield TaskRow(
            "eval" if purpose == b"eval" else "train",
            tag.decode(),
            int.from_bytes(index, "big"),
            codec.decode(Task, data),
        )


_GET: dict[str, Callable[[Txn], Iterable[Any]]] = {
    "tasks": _tasks,
    "groups": lambda txn: (checksums.read(txn, row) for row in txn.rows()),
    "states": lambda txn: txn.rows(),
    "draws": lambda txn: (codec.decode(DrawRow, data) for _, data in txn.scan("draw")),
    "ledger": lambda txn: (txn.read_ledger(data) for _, data in txn.scan("ledger")),
    "drops": lambda txn: (DropRow(*drop, count) for drop, count in txn.drops()),
    "counts": lambda txn: (CountRow(name, number) for name, number in txn.counts().items()),
    "tombs": lambda txn: (TombRow(k.decode()) for k, _ in txn.scan("tomb", values=False)),
    "progress": lambda txn: [txn.progress()],
}
_PUT: dict[str, Callable[[Txn, Any], object]] = {
    "tasks": lambda txn, row: txn.add_task(row.purpose, row.tag, row.index, row.task),
    "draws": lambda txn, draw: txn.put_draw(draw),
    "ledger": lambda txn, line: txn.put_ledger(line),
    "drops": lambda txn, row: txn.put_drops((row.cause, row.what, row.task_id), row.count),
    "counts": lambda txn, row: txn.put_count(row.name, row.number),
    "tombs": lambda txn, row: txn.put("tomb", row.group_id.encode(), b""),
    "progress": lambda txn, progress: txn.put_progress(progress),
}


def _put_group(txn: Txn, row: GroupRow, group: Group) -> None:
    if row.group_id != group.group_id:
        raise UserError(f"states and groups differ: {row.group_id} beside {group.group_id}")
    parts = {(r.role, r.slot): codec.encode(r) for r in group.results}
    row = row.but(checksums=tuple(checksums.checksum(parts[slot]) for slot in row.resolved))
    txn.put_row(row)
    txn.add_group(row)
    txn.set_live(row)
    if row.unfinished:
        for (role, slot), data in parts.items():
            txn.put_part(row.group_id, role, slot, data)
    else:
        txn.put_record(row, codec.encode(group))


def _make_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"export to {folder}: the folder is not empty")
    except OSError as error:
        raise UserError(f"export to {folder}: cannot be written ({error.strerror})") from None


def check(folder: Path) -> dict[str, Any]:
    """The manifest of a whole, undamaged export."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text("utf-8"))
        if manifest["format"] != FORMAT or manifest["encoding"] not in FORMATS:
            raise ValueError(f"format {manifest['format']!r:.40}")
        if manifest["schema"] != SCHEMA:
            raise SchemaVersionError(
                f"export {folder}: has schema {manifest['schema']!r:.40}, this r3l reads schema "
                f"{SCHEMA} only; import it with the r3l that wrote it"
            )
        for table in TABLES:
            file = manifest["tables"][table]
            if _digest(folder / file["file"]) != file["sha256"]:
                raise UserError(f"export {folder}: {file['file']} is not what the manifest says")
    except OSError as error:
        raise UserError(f"export {folder}: {error.filename} ({error.strerror})") from None
    except R3LError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"export {folder}: manifest.json is no manifest ({error})") from None
    return manifest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
