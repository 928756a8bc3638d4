"""One transaction: what the tables hold (buffer.storage.layout), as rows and records."""

import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import merge
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from buffer.storage.layout import (
    history_key,
    listed_prefix,
    part_key,
    reflection_key,
    tag_prefix,
    task_id_key,
    task_key,
    u64,
)
from buffer.storage.stored_rows import (
    ArchivePlace,
    DrawRow,
    GroupRow,
    LedgerRow,
    Regrade,
    Regrades,
    RunPosition,
    Status,
    is_closed,
)
from buffer.storage.tables import Tables
from r3l import codec
from r3l.errors import NotFound, StoreError
from r3l.records import GROUP_STATES, Group, GroupState, Purpose, Task

Encoded = bytes | memoryview
ARCHIVING_LIMIT = 1 << 20  # bytes of the ids of groups that are being archived
_GROUP, FIRST = re.compile(r"g\d{10}"), b"g0000000001"
PURPOSES: tuple[Purpose, ...] = ("train", "eval")


@dataclass(frozen=True)
class Parts:
    """What a group is made of, encoded: its results by slot, and its reflections by name."""

    results: dict[int, Encoded] = field(default_factory=dict)
    reflections: dict[str, Encoded] = field(default_factory=dict)

    def __or__(self, more: "Parts") -> "Parts":
        return Parts(self.results | more.results, self.reflections | more.reflections)


Archived = Callable[[str, str, ArchivePlace], bytes]
"""Returns an archived record, by the archive's address, the group's id and its place."""


class Txn(Tables):
    """The rows and records of a store as seen by one transaction. `archived`: reads from the
    archive."""

    def __init__(self, raw: Any, tables: dict[str, Any], archived: Archived | None = None) -> None:
        super().__init__(raw, tables)
        self._archived = archived

    # ── the store itself ────────────────────────────────────────────────────────────────

    def schema(self) -> int:
        """Returns the schema version of the tables, or 0 if the store has no schema entry."""
        data = self.get("sys", b"schema")
        schema = codec.unpack(data).get("schema") if data is not None else 0
        return schema if type(schema) is int else 0

    def progress(self) -> RunPosition:
        return self.read("sys", b"progress", RunPosition) or RunPosition()

    def put_progress(self, progress: RunPosition) -> None:
        self.put("sys", b"progress", codec.encode(progress))

    def regrades(self) -> tuple[Regrade, ...]:
        """Returns the regrades that replaced the store's rewards, oldest first."""
        return (self.read("sys", b"regraded", Regrades) or Regrades()).done

    def put_regrades(self, regrades: Sequence[Regrade]) -> None:
        if regrades:
            self.put("sys", b"regraded", codec.encode(Regrades(tuple(regrades))))

    def sampler_state(self) -> bytes | None:
        """Returns what the sampler saved at the last draw, encoded, or None."""
        return self.get("sys", b"sampler")

    def put_sampler_state(self, state: bytes) -> None:
        self.put("sys", b"sampler", state)

    def archive(self) -> str:
        """Returns the address of the archive, or "" if there never was one."""
        return (self.get("sys", b"archive") or b"").decode()

    def put_archive(self, address: str) -> None:
        self.put("sys", b"archive", address.encode())

    def archiving(self) -> tuple[str, ...]:
        """Returns the groups that are being archived."""
        data = self.get("sys", b"archiving")
        return tuple(codec.unpack(data, ARCHIVING_LIMIT)["groups"]) if data else ()

    def put_archiving(self, groups: Sequence[str]) -> None:
        self.put("sys", b"archiving", codec.pack({"groups": list(groups)}, ARCHIVING_LIMIT))

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

    def task_counts(self) -> Counter[tuple[Purpose, str]]:
        """Returns how many tasks each list has, by purpose and tag. Looks only at the last one of
        each list."""
        counts = Counter[tuple[Purpose, str]]()
        for purpose in PURPOSES:
            prefix, before = purpose.encode() + b"\0", b""
            while last := next(self.keys("task", prefix, backwards=True, before=before), None):
                before = last[len(prefix) : -8]  # the tag and NUL
                counts[purpose, before[:-1].decode()] = int.from_bytes(last[-8:], "big") + 1
        return counts

    def task(self, purpose: Purpose, tag: str, index: int) -> Task:
        data = self.get("task", task_key(purpose, tag, index))
        if data is None:
            raise StoreError(f"task {index} of {purpose} {tag!r} is missing from the store")
        return _read_task(data)

    # ── rows of groups ──────────────────────────────────────────────────────────────────

    def row(self, group_id: str) -> GroupRow | None:
        """Returns a group's mutable state, or None if the group is not stored."""
        return self.read("state", group_id.encode(), GroupRow)

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

    def list_state(self, row: GroupRow, before: GroupRow | None = None) -> None:
        """Lists a group under its purpose and state, and removes it from its earlier list."""
        key = row.group_id.encode()
        if before is not None:
            self.delete("listed", listed_prefix(before.purpose, before.state) + key)
        self.put("listed", listed_prefix(row.purpose, row.state) + key, b"")

    def rows(self, *, backwards: bool = False, skip: Container[str] = ()) -> Iterator[GroupRow]:
        """Yields the rows of all groups except those in `skip`, in creation order."""
        for key, data in self.scan("state", backwards=backwards):
            if key.decode() not in skip:
                yield codec.decode(GroupRow, data)

    def listed(
        self, purpose: Purpose | None, tag: str | None, state: GroupState | None
    ) -> Iterator[GroupRow]:
        """Yields the rows with this purpose, tag and state (None: any), newest first."""
        for row in map(self.existing_row, self.candidates(purpose, tag, state)):
            if row.listed_under(purpose, tag, state):
                yield row

    def candidates(
        self,
        purpose: Purpose | None,
        tag: str | None,
        state: GroupState | None,
        before: str = "",
    ) -> Iterator[str]:
        """Yields ids of groups, newest first, from the list that is likely the shortest. All groups
        with this purpose, tag and state are among them. `before`: only older groups."""
        purposes = PURPOSES if purpose is None else (purpose,)
        if tag:
            table, prefixes = "tag", [tag_prefix(each, tag) for each in purposes]
        elif purpose or state:
            states = GROUP_STATES if state is None else (state,)
            table, prefixes = "listed", [listed_prefix(p, s) for p in purposes for s in states]
        else:
            table, prefixes = "state", [b""]
        found = [self._ids(table, prefix, before, backwards=True) for prefix in prefixes]
        return merge(*found, reverse=True)

    def live(self) -> Iterator[GroupRow]:
        """Yields the rows of groups that are not closed, in creation order."""
        states = [(p, s) for p in PURPOSES for s in GROUP_STATES if not is_closed(p, s)]
        found = [self._ids("listed", listed_prefix(*each)) for each in states]
        return (self._row_in("listed", group_id) for group_id in merge(*found))

    def _ids(
        self, table: str, prefix: bytes, before: str = "", *, backwards: bool = False
    ) -> Iterator[str]:
        """Yields the ids of the groups that a table lists under `prefix`."""
        keys = self.keys(table, prefix, backwards=backwards, before=before.encode())
        return (key[len(prefix) :].decode() for key in keys)

    def last_group(self) -> str:
        """Returns the id of the newest group ever made, or "" if there is none."""
        newest = (next(self.keys(table, backwards=True), b"") for table in ("state", "tomb"))
        return max(newest).decode()

    # ── results and records of groups ───────────────────────────────────────────────────

    def put_parts(self, group_id: str, parts: Parts) -> None:
        """Writes results and reflections of a group. Deletes the progress of the results' slots."""
        for slot, data in parts.results.items():
            key = part_key(group_id, slot)
            self.put("part", key, data)
            self.delete_all("partial", key)
        for name, data in parts.reflections.items():
            self.put("reflection", reflection_key(group_id, name), data)

    def parts(self, group_id: str) -> Parts:
        """Returns the accepted results and reflections of a group, sorted."""
        prefix = group_id.encode() + b"\0"
        parts = Parts()
        for key, data in self.scan("part", prefix):
            parts.results[int(key[len(prefix) :])] = data
        for key, data in self.scan("reflection", prefix):
            parts.reflections[key[len(prefix) :].decode()] = data
        return parts

    def partial_keys(self, group_id: str) -> list[bytes]:
        """Returns the keys of a group in table `partial`, in the order of the slots."""
        return list(self.keys("partial", group_id.encode() + b"\0"))

    def write_record(self, row: GroupRow, last: Parts | None = None) -> None:
        """Finishes a group's record: writes the results and reflections `last`, and the rest of the
        record (`head`). Deletes the progress of the group."""
        self.put_parts(row.group_id, last or Parts())
        self.delete_all("partial", row.group_id.encode() + b"\0")
        self._put_head(row, self.head(row))

    def put_record(self, row: GroupRow, group: Group) -> None:
        """Writes or replaces the whole record of a finished group."""
        self.put_parts(row.group_id, parts_of(group))
        self._put_head(row, replace(group, results=(), reflections=()))

    def _put_head(self, row: GroupRow, head: Group) -> None:
        self.put("group", row.group_id.encode(), codec.encode(head))
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
        for group_id in self._ids(table, prefix, backwards=backwards):
            yield self._row_in(table, group_id)

    def _row_in(self, table: str, group_id: str) -> GroupRow:
        if (row := self.row(group_id)) is None:
            raise StoreError(f"group {group_id}: is in table {table}, but has no row")
        return row

    def record(self, group_id: str) -> bytes:
        """Returns the record of a finished group, from the store or from the archive: always the
        same bytes. Raises NotFound if there is none, StoreError if the archive cannot be read."""
        data = self.get("group", group_id.encode())
        if data is None:
            row = self.row(group_id)
            if row is None or row.archived is None or self._archived is None:
                raise NotFound(f"group {group_id} has no record")
            return self._archived(self.archive(), group_id, row.archived)
        return _composed(codec.decode(Group, data), self.parts(group_id))

    def record_is_sound(self, row: GroupRow) -> bool:
        """Returns whether the record of a finished group exists whole and undamaged. Reads it, even
        from the archive."""
        if row.archived is not None:
            try:
                return bool(self.record(row.group_id))
            except StoreError:
                return False
        name, thoughts = row.group_id, [name for name, _ in row.reflections]
        keys = [("group", name.encode())]
        keys += [("part", part_key(name, slot)) for slot in row.resolved_slots]
        keys += [("reflection", reflection_key(name, thought)) for thought in thoughts]
        return all(self.is_sound(table, key) for table, key in keys)

    def group_bytes(self, row: GroupRow) -> bytes:
        """Returns the encoded group. An unfinished group has what was accepted so far."""
        if row.unfinished:
            return _composed(self.head(row), self.parts(row.group_id))
        return self.record(row.group_id)

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
        self.delete_record(row)
        self.delete("state", key)
        self.delete("history", history_key(row.task_id, row.group_id))
        self.delete("tag", tag_prefix(row.purpose, row.tag) + key)
        self.delete("listed", listed_prefix(row.purpose, row.state) + key)
        self.put("tomb", key, b"")

    def evicted(self, group_id: str) -> bool:
        """Whether a group that is not stored was evicted."""
        key = group_id.encode()
        if self.get("tomb", key) is not None:
            return True
        newest = self.get("sys", b"evicted") or b""  # and all before it (buffer.groups.pruning)
        if not FIRST <= key <= newest or not _GROUP.fullmatch(group_id):
            return False
        return self.row(group_id) is None

    def delete_record(self, row: GroupRow) -> None:
        """Deletes the record of a finished group: its head, results and reflections."""
        key = row.group_id.encode()
        self.delete("group", key)
        for table in ("part", "reflection"):
            self.delete_all(table, key + b"\0")

    # ── draws and ledger ────────────────────────────────────────────────────────────────

    def put_draw(self, draw: DrawRow) -> None:
        self.put("draw", u64(draw.draw_id), codec.encode(draw))

    def draw(self, draw_id: int) -> DrawRow | None:
        return self.read("draw", u64(draw_id), DrawRow) if draw_id >= 0 else None

    def put_step(self, step: LedgerRow) -> None:
        self.put("ledger", u64(step.step), codec.encode(step))

    def step(self, number: int) -> LedgerRow | None:
        return self.read("ledger", u64(number), LedgerRow) if 0 <= number < 1 << 64 else None

    def existing_step(self, number: int) -> LedgerRow:
        """Returns a row of the ledger. Raises NotFound if the ledger lacks the step."""
        if (step := self.step(number)) is not None:
            return step
        first, last = next(self.steps(), None), next(self.steps(backwards=True), None)
        held = f"it has steps {first.step} to {last.step}" if first and last else "it is empty"
        raise NotFound(
            f"step {number} is not in the ledger; {held}, less those whose groups were all evicted"
        )

    def steps(self, *, backwards: bool = False) -> Iterator[LedgerRow]:
        for _, data in self.scan("ledger", backwards=backwards):
            yield codec.decode(LedgerRow, data)

    def steps_after(self, version: int) -> Iterator[LedgerRow]:
        """Yields the steps that made a version later than `version`, newest first."""
        return takewhile(lambda step: step.version > version, self.steps(backwards=True))


def parts_of(group: Group) -> Parts:
    """Returns the encoded results and reflections of a group."""
    return Parts(
        {each.slot: codec.encode(each) for each in group.results},
        {each.name: codec.encode(each) for each in group.reflections},
    )


def _composed(head: Group, parts: Parts) -> bytes:
    """Encodes a group from its head and its encoded parts."""
    results = [parts.results[slot] for slot in sorted(parts.results)]
    reflections = [parts.reflections[name] for name in sorted(parts.reflections)]
    return codec.encode_group(head, results, reflections)


def read_group(data: bytes | memoryview, now: GroupRow | Status) -> Group:
    """Decodes the record of a group, and takes the group's current state from `now`."""
    group = codec.decode(Group, data)
    return replace(group, state=now.state, cause=now.cause, times=now.times)


@lru_cache(maxsize=1024)
def _read_task(data: bytes) -> Task:
    """Decodes a task. Cached, because every lease and read of a group needs the group's task."""
    return codec.decode(Task, data)
