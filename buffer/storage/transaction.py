"""The tables of a store, and one transaction's typed view of them.

    sys       name -> value                    schema, progress (versions, task cycle)
    count     name -> number                   every figure, as in buffer.storage.counts
    task      purpose\\0 tag\\0 index -> Task    in the order of registration
    task_id   purpose\\0 tag\\0 id -> index      makes registration idempotent
    state     group -> GroupRow                   all mutable state of a group
    live      group -> ''                      groups that can still change
    tomb      group -> ''                      groups that were evicted; their ids are never reused
    part      group\\0 role\\0 slot -> result    accepted results of an unfinished group
    group     group -> Group                   immutable, written whole when it is finished
    history   task id\\0 group -> ''            finished groups of a task, oldest first
    tag       purpose\\0 tag\\0 group -> ''    groups of a purpose and tag, oldest first
    drop      cause\\0 what\\0 task -> count   groups and slots that will never be trained on
    draw      draw -> DrawRow                every batch handed out
    ledger    step -> LedgerRow              every batch trained

Group ids and integers sort in the order they were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from functools import lru_cache
from typing import Any, get_args

from msgspec.structs import replace

from buffer.storage.layout import SCHEMA, history_key, part_key, tag_prefix, task_key, u64
from buffer.storage.rows import DrawRow, Drop, Dropped, GroupRow, LedgerRow, Progress, Status
from r3l import codec
from r3l.errors import LimitExceeded, NotFound, StoreError
from r3l.records import Group, Purpose, Role, SlotResult, Task

Parts = dict[tuple[Role, int], bytes | memoryview]  # encoded results by role and slot
_WHAT: dict[str, Dropped] = {what: what for what in get_args(Dropped)}


class Txn:
    """One transaction's typed view of the tables."""

    def __init__(self, raw: Any, tables: dict[str, Any]) -> None:
        self._raw, self._tables = raw, tables

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value under `key`, copied out of the map."""
        if not key:
            return None
        value: bytes | None = self._raw.get(key, db=self._tables[table])
        return value

    def put(self, table: str, key: bytes, value: bytes | memoryview) -> None:
        """Write or overwrite."""
        self._raw.put(key, value, db=self._tables[table])

    def delete(self, table: str, key: bytes) -> None:
        """Remove; nothing happens if it is not there."""
        self._raw.delete(key, db=self._tables[table])

    def scan(
        self, table: str, prefix: bytes = b"", *, backwards: bool = False, values: bool = True
    ) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) of every key that begins with `prefix`, in key order."""
        with self._raw.cursor(self._tables[table]) as cursor:
            if not _seek(cursor, prefix, backwards):
                return
            for item in (cursor.iterprev if backwards else cursor.iternext)(values=values):
                key, value = item if values else (item, b"")
                if not key.startswith(prefix):
                    return
                yield key, value

    def count(self, table: str) -> int:
        """Keys in a table."""
        return int(self._raw.stat(self._tables[table])["entries"])

    def schema(self) -> int:
        """Schema of the tables; 0 for a store that names none."""
        data = self.get("sys", b"schema")
        schema = codec.unpack(data).get("schema") if data is not None else 0
        return schema if type(schema) is int else 0

    def put_schema(self) -> None:
        """Write that the tables are of today's schema."""
        self.put("sys", b"schema", codec.pack({"schema": SCHEMA}))

    # ── groups ──────────────────────────────────────────────────────────────────────────

    def row(self, group_id: str) -> GroupRow | None:
        """The mutable state of a group."""
        data = self.get("state", group_id.encode())
        return None if data is None else codec.decode(GroupRow, data)

    def put_row(self, row: GroupRow) -> None:
        """Write the mutable state of a group."""
        self.put("state", row.group_id.encode(), codec.encode(row))

    def set_live(self, row: GroupRow) -> None:
        """List a group among those that can still change, or take it off the list."""
        if row.closed:
            self.delete("live", row.group_id.encode())
        else:
            self.put("live", row.group_id.encode(), b"")

    def live(self) -> Iterator[GroupRow]:
        """Groups that can still change, in the order they were made."""
        for key, _ in self.scan("live", values=False):
            row = self.row(key.decode())
            if row is None:
                raise StoreError(f"group {key.decode()} is listed as live but has no state")
            yield row

    def rows(self, *, backwards: bool = False, skip: Container[str] = ()) -> Iterator[GroupRow]:
        """The state of every group but those of `skip`, in the order they were made."""
        for key, data in self.scan("state", backwards=backwards):
            if key.decode() not in skip:
                yield codec.decode(GroupRow, data)

    def add_group(self, row: GroupRow) -> None:
        """List a new group under its purpose and tag."""
        self.put("tag", tag_prefix(row.purpose, row.tag) + row.group_id.encode(), b"")

    def put_part(self, group_id: str, role: Role, slot: int, data: bytes | memoryview) -> None:
        """Keep one accepted result of an unfinished group."""
        self.put("part", part_key(group_id, role, slot), data)

    def parts(self, group_id: str) -> Parts:
        """Accepted results of an unfinished group, base slots first."""
        parts: Parts = {}
        for key, data in self.scan("part", group_id.encode() + b"\0"):
            _, role, slot = key.split(b"\0")
            parts["base" if role == b"base" else "distilled", int(slot)] = data
        return parts

    def seal(self, row: GroupRow, last: Parts | None = None, *, parted: bool = True) -> None:
        """Turn the parts of a group, with the `last` ones that were not written as such, into
        one immutable record and list it under its task. `parted`: it may have parts."""
        parts = self.parts(row.group_id) if parted else {}
        for role, slot in parts:
            self.delete("part", part_key(row.group_id, role, slot))
        self.put_record(row, self._compose(row, parts | (last or {})))

    def put_record(self, row: GroupRow, record: bytes) -> None:
        """Write the immutable record of a group and list it under its task."""
        self.put("group", row.group_id.encode(), record)
        self.put("history", history_key(row.task_id, row.group_id), b"")

    def evict(self, row: GroupRow) -> None:
        """Remove a closed group; what is left is its id, which stays refused."""
        key = row.group_id.encode()
        self.delete("group", key)
        self.delete("state", key)
        self.delete("history", history_key(row.task_id, row.group_id))
        self.delete("tag", tag_prefix(row.purpose, row.tag) + key)
        self.put("tomb", key, b"")

    def evicted(self, group_id: str) -> bool:
        """True if there was such a group."""
        return self.get("tomb", group_id.encode()) is not None

    def last_group(self) -> str:
        """The newest group there ever was; "" for none."""
        newest = b""
        for table in ("state", "tomb"):
            for key, _ in self.scan(table, backwards=True, values=False):
                newest = max(newest, key)
                break
        return newest.decode()

    def sealed(self, group_id: str) -> bytes | memoryview:
        """The record of a group that is finished; raises NotFound."""
        data = self.get("group", group_id.encode())
        if data is None:
            raise NotFound(f"group {group_id} has no record")
        return data

    def group_bytes(self, row: GroupRow) -> bytes:
        """The group's record as it was written, or as far as it is accepted."""
        sealed = self.get("group", row.group_id.encode())
        return sealed or self._compose(row, self.parts(row.group_id))

    def head(self, row: GroupRow) -> Group:
        """The group without its results."""
        return Group(
            group_id=row.group_id,
            task=self.task(row.purpose, row.tag, row.task_index),
            plan=row.plan,
            state=row.state,
            purpose=row.purpose,
            tag=row.tag,
            actor=row.actor,
            cause=row.cause,
            times=row.times,
            fingerprints=row.fingerprints,
        )

    def _compose(self, row: GroupRow, parts: Parts) -> bytes:
        return codec.encode_group(self.head(row), [parts[key] for key in sorted(parts)])

    # ── tasks, draws, progress ─────────────────────────────────────────────────────────────

    def add_task(self, purpose: Purpose, tag: str, index: int, task: Task) -> bool:
        """Register a task under `index`; False if its id is known already."""
        if "\0" in tag + task.task_id:
            raise LimitExceeded(f"tag {tag!r:.80} or task id {task.task_id!r:.80} holds a NUL")
        key = task_key(purpose, tag, task.task_id.encode())
        if self.get("task_id", key) is not None:
            return False
        self.put("task_id", key, u64(index))
        self.put("task", task_key(purpose, tag, u64(index)), codec.encode(task))
        return True

    def task(self, purpose: Purpose, tag: str, index: int) -> Task:
        """The task at `index` of a list."""
        data = self.get("task", task_key(purpose, tag, u64(index)))
        if data is None:
            raise StoreError(f"task {index} of {purpose} {tag!r} is missing from the store")
        return _read_task(data)

    def put_draw(self, draw: DrawRow) -> None:
        """Write a draw and its outcome."""
        self.put("draw", u64(draw.draw_id), codec.encode(draw))

    def draw(self, draw_id: int) -> DrawRow | None:
        """A draw by number."""
        data = self.get("draw", u64(draw_id)) if draw_id >= 0 else None
        return None if data is None else codec.decode(DrawRow, data)

    def last_draw(self) -> int:
        """The number of the newest draw; 0 for none."""
        for key, _ in self.scan("draw", backwards=True, values=False):
            return int.from_bytes(key, "big")
        return 0

    def put_drops(self, drop: Drop, count: int) -> None:
        """Write how often this was dropped."""
        self.put("drop", "\0".join(drop).encode(), u64(count))

    def drops(self) -> Iterator[tuple[Drop, int]]:
        """Everything that was dropped, and how often."""
        for key, count in self.scan("drop"):
            cause, what, task = key.decode().split("\0")
            yield (cause, _WHAT[what], task), int.from_bytes(count, "big")

    def put_ledger(self, row: LedgerRow) -> None:
        """Write what a step was trained on."""
        self.put("ledger", u64(row.step), codec.encode(row))

    def ledger(self, step: int) -> LedgerRow | None:
        """What a step was trained on."""
        data = self.get("ledger", u64(step)) if 0 <= step < 1 << 64 else None
        return None if data is None else codec.decode(LedgerRow, data)

    def read_ledger(self, data: bytes) -> LedgerRow:
        """A line of the ledger."""
        return codec.decode(LedgerRow, data)

    def ledger_after(self, version: int) -> Iterator[LedgerRow]:
        """Steps, newest first, that made a version later than `version`."""
        for _, data in self.scan("ledger", backwards=True):
            row = self.read_ledger(data)
            if row.version <= version:
                return
            yield row

    def drop_ledger(self, step: int) -> None:
        """Forget a step."""
        self.delete("ledger", u64(step))

    def counts(self) -> Counter[str]:
        """Every figure, by name (buffer.storage.counts)."""
        return Counter(
            {key.decode(): int.from_bytes(value, "big") for key, value in self.scan("count")}
        )

    def put_count(self, name: str, number: int) -> None:
        """Write a figure; one that is 0 needs no line."""
        if number:
            self.put("count", name.encode(), u64(number))
        else:
            self.delete("count", name.encode())

    def progress(self) -> Progress:
        """Where the service stood."""
        data = self.get("sys", b"progress")
        return Progress() if data is None else codec.decode(Progress, data)

    def put_progress(self, progress: Progress) -> None:
        """Write where the service stands."""
        self.put("sys", b"progress", codec.encode(progress))


def not_found(txn: Txn, group_id: str) -> NotFound:
    """The error for a group that is not there, and why."""
    if txn.evicted(group_id):
        return NotFound(f"group {group_id} was evicted")
    return NotFound(f"there is no group {group_id!r:.80}")


def read_group(data: bytes | memoryview, now: GroupRow | Status) -> Group:
    """The immutable record with the state it is in now."""
    group = codec.decode(Group, data)
    return replace(group, state=now.state, cause=now.cause, times=now.times)


@lru_cache(maxsize=1024)
def _read_task(data: bytes) -> Task:
    """A task is read many times: at its lease, its end, and by every look into its groups."""
    return codec.decode(Task, data)


def read_result(data: bytes | memoryview) -> SlotResult:
    """One accepted result."""
    return codec.decode(SlotResult, data)


def _seek(cursor: Any, prefix: bytes, backwards: bool) -> bool:
    """Put the cursor on the first (last) key that may begin with `prefix`."""
    if not backwards:
        return bool(cursor.set_range(prefix) if prefix else cursor.first())
    if prefix and cursor.set_range(prefix + b"\xff" * 16):
        return bool(cursor.prev())
    return bool(cursor.last())
