"""One transaction: a typed view of the tables (buffer.storage.layout)."""

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import merge
from itertools import takewhile
from typing import Any, TypeVar

from msgspec.structs import replace

from buffer.storage import value_checksums
from buffer.storage.layout import (
    history_key,
    part_key,
    reflection_key,
    tag_prefix,
    task_id_key,
    task_key,
    u64,
)
from buffer.storage.stored_rows import (
    DrawRow,
    GroupRow,
    LedgerRow,
    Regrade,
    Regrades,
    RunPosition,
    Status,
)
from r3l import codec
from r3l.errors import NotFound, StoreError
from r3l.records import Group, GroupState, Purpose, Record, Task

Encoded = bytes | memoryview
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Parts:
    """What a group is made of, encoded: its results by slot, and its reflections by name."""

    results: dict[int, Encoded] = field(default_factory=dict)
    reflections: dict[str, Encoded] = field(default_factory=dict)

    def __or__(self, more: "Parts") -> "Parts":
        return Parts(self.results | more.results, self.reflections | more.reflections)


class Txn:
    """The tables of a store as seen by one transaction."""

    def __init__(self, raw: Any, tables: dict[str, Any]) -> None:
        self._raw, self._tables = raw, tables

    def get(self, table: str, key: bytes) -> bytes | None:
        """Returns a copy of the value under `key`. Raises StoreError if the value is damaged."""
        stored = self._raw.get(key, db=self._tables[table]) if key else None
        return None if stored is None else value_checksums.remove(table, key, stored)

    def damaged(self) -> Iterator[str]:
        """Yields one line about each damaged value."""
        for table, db in self._tables.items():
            with self._raw.cursor(db) as cursor:
                for key, stored in cursor:
                    if not value_checksums.fits(table, key, stored):
                        yield f"table {table}, key {key!r:.100}: is damaged (checksum mismatch)"

    def put(self, table: str, key: bytes, value: bytes | memoryview) -> None:
        self._raw.put(key, value_checksums.add(table, key, value), db=self._tables[table])

    def delete(self, table: str, key: bytes) -> None:
        self._raw.delete(key, db=self._tables[table])

    def scan(
        self, table: str, prefix: bytes = b"", *, backwards: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yields (key, value) of every key that begins with `prefix`, in key order. Raises
        StoreError if a value is damaged."""
        with self._raw.cursor(self._tables[table]) as cursor:
            if _seek(cursor, prefix, backwards):
                for key, value in (cursor.iterprev if backwards else cursor.iternext)():
                    if not key.startswith(prefix):
                        return
                    yield key, value_checksums.remove(table, key, value)

    def keys(self, table: str, prefix: bytes = b"", *, backwards: bool = False) -> Iterator[bytes]:
        """Yields every key that begins with `prefix`, in order, without reading the values."""
        with self._raw.cursor(self._tables[table]) as cursor:
            if _seek(cursor, prefix, backwards):
                for key in (cursor.iterprev if backwards else cursor.iternext)(values=False):
                    if not key.startswith(prefix):
                        return
                    yield key

    def _read(self, table: str, key: bytes, kind: type[R]) -> R | None:
        data = self.get(table, key)
        return None if data is None else codec.decode(kind, data)

    def size(self, table: str) -> int:
        return int(self._raw.stat(self._tables[table])["entries"])

    # ── the store itself ────────────────────────────────────────────────────────────────

    def schema(self) -> int:
        """Returns the schema version of the tables, or 0 if the store has no schema entry."""
        data = self.get("sys", b"schema")
        schema = codec.unpack(data).get("schema") if data is not None else 0
        return schema if type(schema) is int else 0

    def progress(self) -> RunPosition:
        return self._read("sys", b"progress", RunPosition) or RunPosition()

    def put_progress(self, progress: RunPosition) -> None:
        self.put("sys", b"progress", codec.encode(progress))

    def regrades(self) -> tuple[Regrade, ...]:
        """Returns how the store's rewards were replaced, the last time last."""
        return (self._read("sys", b"regraded", Regrades) or Regrades()).done

    def put_regrades(self, regrades: Sequence[Regrade]) -> None:
        if regrades:
            self.put("sys", b"regraded", codec.encode(Regrades(tuple(regrades))))

    def sampler_state(self) -> bytes | None:
        """Returns what the sampler saved at the last draw, encoded, or None."""
        return self.get("sys", b"sampler")

    def put_sampler_state(self, state: bytes) -> None:
        self.put("sys", b"sampler", state)

    def counts(self) -> Counter[str]:
        """Returns every count, keyed by name (buffer.storage.counts)."""
        return Counter(
            {key.decode(): int.from_bytes(value, "big") for key, value in self.scan("count")}
        )

    def put_count(self, name: str, number: int) -> None:
        """Writes a count, or deletes its key if the count is 0."""
        if number:
            self.put("count", name.encode(), u64(number))
        else:
            self.delete("count", name.encode())

    # ── tasks ───────────────────────────────────────────────────────────────────────────

    def add_task(self, purpose: Purpose, tag: str, index: int, task: Task) -> bool:
        """Registers a task under `index`. Returns False if its id is already known."""
        key = task_id_key(purpose, tag, task.task_id)
        if self.get("task_id", key) is not None:
            return False
        self.put("task_id", key, u64(index))
        self.put("task", task_key(purpose, tag, index), codec.encode(task))
        return True

    def task_index(self, purpose: Purpose, tag: str, task_id: str) -> int | None:
        """Returns the place of a task in its list, or None if its id is unknown."""
        data = self.get("task_id", task_id_key(purpose, tag, task_id))
        return None if data is None else int.from_bytes(data, "big")

    def task(self, purpose: Purpose, tag: str, index: int) -> Task:
        data = self.get("task", task_key(purpose, tag, index))
        if data is None:
            raise StoreError(f"task {index} of {purpose} {tag!r} is missing from the store")
        return _read_task(data)

    # ── rows of groups ──────────────────────────────────────────────────────────────────

    def row(self, group_id: str) -> GroupRow | None:
        """Returns a group's mutable state, or None if the group is not stored."""
        return self._read("state", group_id.encode(), GroupRow)

    def existing_row(self, group_id: str) -> GroupRow:
        """Returns a group's mutable state. Raises NotFound if the group is evicted or unknown."""
        if (row := self.row(group_id)) is not None:
            return row
        if self.evicted(group_id):
            raise NotFound(f"group {group_id} was evicted")
        raise NotFound(f"there is no group {group_id!r:.80}; r3l-buffer ls lists all groups")

    def put_row(self, row: GroupRow) -> None:
        self.put("state", row.group_id.encode(), codec.encode(row))

    def add_tag(self, row: GroupRow) -> None:
        """Lists a new group under its purpose and tag."""
        self.put("tag", tag_prefix(row.purpose, row.tag) + row.group_id.encode(), b"")

    def set_live(self, row: GroupRow) -> None:
        """Lists a group as live. If the group is closed, removes it from the live groups."""
        if row.closed:
            self.delete("live", row.group_id.encode())
        else:
            self.put("live", row.group_id.encode(), b"")

    def rows(self, *, backwards: bool = False, skip: Container[str] = ()) -> Iterator[GroupRow]:
        """Yields the rows of all groups except those in `skip`, in creation order."""
        for key, data in self.scan("state", backwards=backwards):
            if key.decode() not in skip:
                yield codec.decode(GroupRow, data)

    def listed(
        self, purpose: Purpose | None, tag: str | None, state: GroupState | None
    ) -> Iterator[GroupRow]:
        """Yields the rows with this purpose, tag and state (None: any), newest first."""
        for row in self.rows(backwards=True) if tag is None else self._tagged(purpose, tag):
            if purpose in (None, row.purpose) and state in (None, row.state):
                yield row

    def _tagged(self, purpose: Purpose | None, tag: str) -> Iterator[GroupRow]:
        purposes: tuple[Purpose, ...] = ("eval", "train") if purpose is None else (purpose,)
        prefixes = (tag_prefix(each, tag) for each in purposes)
        found = [self._rows_in("tag", prefix, backwards=True) for prefix in prefixes]
        return merge(*found, key=lambda row: row.group_id, reverse=True)

    def live(self) -> Iterator[GroupRow]:
        """Yields the rows of groups that are not closed, in creation order."""
        return self._rows_in("live")

    def last_group(self) -> str:
        """Returns the id of the newest group ever made, or "" if there is none."""
        newest = (next(self.keys(table, backwards=True), b"") for table in ("state", "tomb"))
        return max(newest).decode()

    # ── results and records of groups ───────────────────────────────────────────────────

    def put_parts(self, group_id: str, parts: Parts) -> None:
        """Writes results and reflections of an unfinished group. Deletes the progress of the
        results' slots."""
        for slot, data in parts.results.items():
            key = part_key(group_id, slot)
            self.put("part", key, data)
            self.delete("partial", key)
        for name, data in parts.reflections.items():
            self.put("reflection", reflection_key(group_id, name), data)

    def parts(self, group_id: str) -> Parts:
        """Returns the accepted results and reflections of an unfinished group, sorted."""
        prefix = group_id.encode() + b"\0"
        parts = Parts()
        for key, data in self.scan("part", prefix):
            parts.results[int(key[len(prefix) :])] = data
        for key, data in self.scan("reflection", prefix):
            parts.reflections[key[len(prefix) :].decode()] = data
        return parts

    def partial_keys(self, group_id: str) -> list[bytes]:
        """Returns the keys of a group's slots in table `partial`, in the order of the slots."""
        return list(self.keys("partial", group_id.encode() + b"\0"))

    def write_record(self, row: GroupRow, last: Parts | None = None) -> None:
        """Writes a finished group's record, from the tables `part` and `reflection` and from
        `last`. Deletes the group from these tables and from `partial`."""
        parts, prefix = self.parts(row.group_id), row.group_id.encode() + b"\0"
        for table in ("part", "partial", "reflection"):
            for key in list(self.keys(table, prefix)):
                self.delete(table, key)
        self.put_record(row, self._compose(row, parts | (last or Parts())))

    def put_record(self, row: GroupRow, record: bytes) -> None:
        """Writes the immutable record of a group, and lists the group under its task."""
        self.put("group", row.group_id.encode(), record)
        self.put("history", history_key(row.task_id, row.group_id), b"")

    def finished(self, task_id: str) -> Iterator[GroupRow]:
        """Yields a task's finished training groups that have a trajectory, newest first."""
        for row in self._rows_in("history", task_id.encode() + b"\0", backwards=True):
            if row.purpose == "train" and row.all_resolved and row.done:
                yield row

    def _rows_in(
        self, table: str, prefix: bytes = b"", *, backwards: bool = False
    ) -> Iterator[GroupRow]:
        """Yields the rows of the groups that a table lists under `prefix`."""
        for key in self.keys(table, prefix, backwards=backwards):
            group_id = key[len(prefix) :].decode()
            if (row := self.row(group_id)) is None:
                raise StoreError(f"group {group_id}: is in table {table}, but has no row")
            yield row

    def record(self, group_id: str) -> bytes:
        """Returns the record of a finished group. Raises NotFound if there is none."""
        data = self.get("group", group_id.encode())
        if data is None:
            raise NotFound(f"group {group_id} has no record")
        return data

    def record_is_sound(self, row: GroupRow) -> bool:
        """Returns whether the record of a finished group exists and is undamaged."""
        key = row.group_id.encode()
        stored = self._raw.get(key, db=self._tables["group"])
        return stored is not None and value_checksums.fits("group", key, stored)

    def group_bytes(self, row: GroupRow) -> bytes:
        """Returns the encoded group. An unfinished group has what was accepted so far."""
        record = self.get("group", row.group_id.encode())
        return record or self._compose(row, self.parts(row.group_id))

    def head(self, row: GroupRow) -> Group:
        """Returns the group without its results and reflections."""
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

    def evict(self, row: GroupRow) -> None:
        """Removes a closed group. Later results for its id are refused."""
        key = row.group_id.encode()
        self.delete("group", key)
        self.delete("state", key)
        self.delete("history", history_key(row.task_id, row.group_id))
        self.delete("tag", tag_prefix(row.purpose, row.tag) + key)
        self.put("tomb", key, b"")

    def evicted(self, group_id: str) -> bool:
        return self.get("tomb", group_id.encode()) is not None

    def _compose(self, row: GroupRow, parts: Parts) -> bytes:
        results = [parts.results[slot] for slot in sorted(parts.results)]
        reflections = [parts.reflections[name] for name in sorted(parts.reflections)]
        return codec.encode_group(self.head(row), results, reflections)

    # ── draws and ledger ────────────────────────────────────────────────────────────────

    def put_draw(self, draw: DrawRow) -> None:
        self.put("draw", u64(draw.draw_id), codec.encode(draw))

    def draw(self, draw_id: int) -> DrawRow | None:
        return self._read("draw", u64(draw_id), DrawRow) if draw_id >= 0 else None

    def put_step(self, step: LedgerRow) -> None:
        self.put("ledger", u64(step.step), codec.encode(step))

    def step(self, number: int) -> LedgerRow | None:
        return self._read("ledger", u64(number), LedgerRow) if 0 <= number < 1 << 64 else None

    def existing_step(self, number: int) -> LedgerRow:
        """Returns a row of the ledger. Raises NotFound if the ledger lacks the step."""
        if (step := self.step(number)) is not None:
            return step
        last = next(self.steps(backwards=True), None)
        held = f"its last step is {last.step}" if last else "it is empty"
        raise NotFound(f"step {number} is not in the ledger; {held}")

    def steps(self, *, backwards: bool = False) -> Iterator[LedgerRow]:
        for _, data in self.scan("ledger", backwards=backwards):
            yield codec.decode(LedgerRow, data)

    def steps_after(self, version: int) -> Iterator[LedgerRow]:
        """Yields the steps that made a version later than `version`, newest first."""
        return takewhile(lambda step: step.version > version, self.steps(backwards=True))


def read_group(data: bytes | memoryview, now: GroupRow | Status) -> Group:
    """Decodes the record of a group, and takes the group's current state from `now`."""
    group = codec.decode(Group, data)
    return replace(group, state=now.state, cause=now.cause, times=now.times)


@lru_cache(maxsize=1024)
def _read_task(data: bytes) -> Task:
    """Decodes a task. Cached, because every lease and read of a group needs the group's task."""
    return codec.decode(Task, data)


def _seek(cursor: Any, prefix: bytes, backwards: bool) -> bool:
    """Moves the cursor to the first key with `prefix`; if `backwards`, to the last one. If no key
    has `prefix`, returns False or stops at another key."""
    if not backwards:
        return bool(cursor.set_range(prefix) if prefix else cursor.first())
    if prefix and cursor.set_range(prefix + b"\xff" * 16):
        return bool(cursor.prev())
    return bool(cursor.last())
