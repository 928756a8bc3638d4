"""The tables of a store: names, keys and the schema's number."""

from __future__ import annotations

from r3l.errors import LimitExceeded
from r3l.records import Purpose, Role

TABLES = tuple(
    "sys count task task_id state live tomb part group history tag drop draw ledger".split()
)


SCHEMA = 3  # of the tables; their records carry codec.SCHEMA


KEY_LIMIT = 400  # bytes of tag and task id together; LMDB's keys end at 511


def u64(number: int) -> bytes:
    """An integer as a key that sorts by value."""
    return number.to_bytes(8, "big")


def task_key(purpose: Purpose, tag: str, last: bytes) -> bytes:
    """Key of a task list's member; raises LimitExceeded for names LMDB cannot hold."""
    if len(tag.encode()) + len(last) > KEY_LIMIT:
        raise LimitExceeded(
            f"tag {tag[:40]!r} and task id {last[:40]!r} take more than {KEY_LIMIT} bytes together"
        )
    return b"\0".join((purpose.encode(), tag.encode(), last))


def tag_prefix(purpose: Purpose, tag: str) -> bytes:
    """What the keys of one purpose and tag begin with."""
    return purpose.encode() + b"\0" + tag.encode() + b"\0"


def part_key(group_id: str, role: Role, slot: int) -> bytes:
    return b"\0".join((group_id.encode(), role.encode(), f"{slot:06d}".encode()))


def history_key(task_id: str, group_id: str) -> bytes:
    """Key of a finished group in the list of its task's."""
    return task_id.encode() + b"\0" + group_id.encode()
