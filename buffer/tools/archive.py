"""Exports and imports a whole store as files that any tool can read.

    FOLDER/
      manifest.json     format, schema, and each file's rows and SHA-256
      tasks             TaskRow, in registration order
      states, groups    GroupRow and Group of every group, in its current state
      draws, ledger     DrawRow, LedgerRow
      drops, counts     DropRow, CountRow
      tombs, progress   TombRow, Progress
      regraded          Regraded, if `r3l-learner regrade` made the store

Each file holds records of one class as JSON lines (buffer.tools.jsonl). Exporting an imported
store gives the same bytes again. An export sees the store at one moment. If a service is busy, make
a copy with `r3l-buffer compact` and export the copy.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from buffer.storage import folder_lock, result_checksums
from buffer.storage.layout import SCHEMA
from buffer.storage.rows import DrawRow, Dropped, GroupRow, LedgerRow, Progress, Regraded
from buffer.storage.store import Store
from buffer.storage.transaction import Txn
from buffer.tools import jsonl
from r3l import codec
from r3l.errors import R3LError, SchemaVersionError, UserError
from r3l.files.whole_file import write_json
from r3l.records import Group, Purpose, Record, Task

FORMAT = "r3l-buffer-export"
AT_ONCE = 64  # rows of one transaction


class TaskRow(Record):
    """A task and its place in its task list."""

    purpose: Purpose
    tag: str
    index: int
    task: Task


class DropRow(Record):
    """A count of groups or slots that will never be trained on (UnitOfWork.drop)."""

    cause: str
    what: Dropped
    task_id: str
    count: int


class CountRow(Record):
    """A count of the store (buffer.storage.counts)."""

    name: str
    number: int


class TombRow(Record):
    """An evicted group."""

    group_id: str


def export(store: Store, folder: Path) -> dict[str, int]:
    """Export a store into a new or empty folder; returns the number of rows, keyed by table.

    Either the whole store is exported or nothing. Raises UserError if the folder is in use or
    cannot be written, RecordError if a group is damaged.
    """
    files: dict[str, dict[str, Any]] = {}
    with folder_lock.new_folder(folder, "export to") as building, store.read() as txn:
        for table, (_, read, _) in TABLES.items():
            path = building / f"{table}.jsonl"
            rows = jsonl.write(path, read(txn))
            files[table] = {"file": path.name, "rows": rows, "sha256": _digest(path)}
        write_json(
            building / "manifest.json", {"format": FORMAT, "schema": SCHEMA, "tables": files}
        )
    return {table: file["rows"] for table, file in files.items()}


def restore(folder: Path, target: Store) -> dict[str, int]:
    """Import an export into an empty store; returns the number of rows, keyed by table."""
    manifest = check(folder)
    with target.read() as txn:
        if txn.size("state") or txn.size("task"):
            raise UserError(f"store {target.folder}: is not empty; import into a new folder")
    files = manifest["tables"]
    for table, (kind, _, write) in TABLES.items():
        records = jsonl.read(folder / files[table]["file"], kind)
        while some := list(islice(records, AT_ONCE)):
            with target.write() as txn:
                for record in some:
                    write(txn, record)
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


def _put_group(txn: Txn, group: Group) -> None:
    row = txn.row(group.group_id)
    if (
        row is None
        or set(row.resolved) != {(r.role, r.slot) for r in group.results}
        or sorted(row.rewards) != sorted(group.rewards)
    ):
        raise UserError(f"import of group {group.group_id}: the tables states and groups differ")
    parts = {(r.role, r.slot): codec.encode(r) for r in group.results}
    sums = tuple(result_checksums.checksum(parts[slot]) for slot in row.resolved)
    txn.put_row(row.with_changes(checksums=sums))
    txn.put_results(row, group, parts)


class Table(NamedTuple):
    """An export table: its record class, and how to read it from a store and write it to one."""

    kind: type[Any]
    read: Callable[[Txn], Iterable[Any]]
    write: Callable[[Txn, Any], object]


TABLES: dict[str, Table] = {
    "tasks": Table(
        TaskRow, _tasks, lambda txn, row: txn.add_task(row.purpose, row.tag, row.index, row.task)
    ),
    "states": Table(GroupRow, Txn.rows, Txn.add_row),
    "groups": Table(
        Group, lambda txn: (result_checksums.read(txn, row) for row in txn.rows()), _put_group
    ),
    "draws": Table(DrawRow, Txn.draws, Txn.put_draw),
    "ledger": Table(LedgerRow, Txn.steps, Txn.put_step),
    "drops": Table(
        DropRow,
        lambda txn: (DropRow(*drop, count) for drop, count in txn.drops()),
        lambda txn, row: txn.put_drops((row.cause, row.what, row.task_id), row.count),
    ),
    "counts": Table(
        CountRow,
        lambda txn: (CountRow(name, number) for name, number in txn.counts().items()),
        lambda txn, row: txn.put_count(row.name, row.number),
    ),
    "tombs": Table(
        TombRow,
        lambda txn: (TombRow(key.decode()) for key in txn.keys("tomb")),
        lambda txn, row: txn.put("tomb", row.group_id.encode(), b""),
    ),
    "progress": Table(Progress, lambda txn: [txn.progress()], Txn.put_progress),
    "regraded": Table(Regraded, lambda txn: filter(None, [txn.regraded()]), Txn.put_regraded),
}


def check(folder: Path) -> dict[str, Any]:
    """Returns the manifest of an export; raises UserError if any file is missing or changed."""
    try:
        manifest: dict[str, Any] = json.loads(_regular(folder, "manifest.json").read_text("utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']!r:.40}")
        if manifest["schema"] != SCHEMA:
            raise SchemaVersionError(
                f"export {folder}: has schema {manifest['schema']!r:.40}, but this r3l reads only "
                f"{SCHEMA}; import it with the r3l that wrote it"
            )
        for table in TABLES:
            file = manifest["tables"][table]
            name = f"{table}.jsonl"
            if file["file"] != name:
                raise ValueError(f"table {table} has file {file['file']!r:.80}; must be {name}")
            if _digest(_regular(folder, name)) != file["sha256"]:
                raise UserError(f"export {folder}: {name} differs from the manifest")
    except OSError as error:
        raise UserError(
            f"export {folder}: {error.filename} cannot be read ({error.strerror}); give a folder "
            "that r3l-buffer export wrote"
        ) from None
    except R3LError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"export {folder}: manifest.json is not valid ({error})") from None
    return manifest


def _regular(folder: Path, name: str) -> Path:
    """Returns the path of a file in an export. Raises OSError if the file is missing, UserError if
    it is not a regular file, such as a pipe or a link out of the folder."""
    path = folder / name
    if not stat.S_ISREG(path.lstat().st_mode):
        raise UserError(f"export {folder}: {name} must be a regular file; copy the whole folder")
    return path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
