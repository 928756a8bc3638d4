"""The tables of a store: names, keys and schema version.

    sys       name -> value                    schema, progress, regraded
    count     name -> number                   every count, as in buffer.storage.counts
    task      purpose\\0 tag\\0 index -> Task    in the order of registration
    task_id   purpose\\0 tag\\0 id -> index      makes registration idempotent
    state     group -> GroupRow                all mutable state of a group
    live      group -> ''                      groups that are not closed
    tomb      group -> ''                      evicted groups; their ids are never reused
    part      group\\0 role\\0 slot -> result    accepted results of an unfinished group
    group     group -> Group                   immutable, written once when it is finished
    history   task id\\0 group -> ''            finished groups of a task, oldest first
    tag       purpose\\0 tag\\0 group -> ''      groups of a purpose and tag, oldest first
    drop      cause\\0 what\\0 task -> count    groups and slots that will never be trained on
    draw      draw -> DrawRow                  every batch that was drawn
    ledger    step -> LedgerRow                every batch that was trained

Every value but the schema carries its checksum (buffer.storage.value_checksums). Group ids and
integers sort in the order they were made. A new table needs its name here, its accessors in
buffer.storage.transaction and, unless it follows from others, its export in buffer.tools.archive.
"""

from __future__ import annotations

from r3l.errors import LimitExceeded
from r3l.records import Purpose, Role

TABLES = tuple(
    "sys count task task_id state live tomb part group history tag drop draw ledger".split()
)
SCHEMA = 4  # version of the tables; that of the records is codec.SCHEMA
KEY_LIMIT = 400  # bytes of tag and task id together; LMDB's keys end at 511


def u64(number: int) -> bytes:
    """An integer as a key that sorts by value."""
    return number.to_bytes(8, "big")


def tag_prefix(purpose: Purpose, tag: str) -> bytes:
    """The prefix of all keys of one purpose and tag."""
    return purpose.encode() + b"\0" + tag.encode() + b"\0"


def task_key(purpose: Purpose, tag: str, index: int) -> bytes:
    """Key of a task in its list."""
    return tag_prefix(purpose, tag) + u64(index)


def task_id_key(purpose: Purpose, tag: str, task_id: str) -> bytes:
    """Key of a task's id; raises LimitExceeded for names that LMDB cannot hold."""
    if "\0" in tag + task_id:
        raise LimitExceeded(f"tag {tag!r:.80}, task id {task_id!r:.80}: neither may hold a NUL")
    size = len(tag.encode()) + len(task_id.encode())
    if size > KEY_LIMIT:
        raise LimitExceeded(
            f"tag {tag[:40]!r}, task id {task_id[:40]!r}: {size} bytes together; limit {KEY_LIMIT}"
        )
    return tag_prefix(purpose, tag) + task_id.encode()


def part_key(group_id: str, role: Role, slot: int) -> bytes:
    """Key of an accepted result."""
    return b"\0".join((group_id.encode(), role.encode(), f"{slot:06d}".encode()))


def history_key(task_id: str, group_id: str) -> bytes:
    """Key of a finished group in the list of its task."""
    return task_id.encode() + b"\0" + group_id.encode()
