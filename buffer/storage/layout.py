"""The tables of a store: their names, their keys and the schema version.

    sys        name -> value                     schema, progress, replies, regraded, sampler,
                                                 archive, archiving,
                                                 evicted: this group and all before it that
                                                 are not stored
    count      name -> number                    every count, see buffer.storage.counts
    task       purpose\\0 tag\\0 index -> Task   in registration order
    task_id    purpose\\0 tag\\0 id -> index     makes registration idempotent
    state      group -> GroupRow                 all mutable state of a group
    listed     purpose\\0 state\\0 group -> ''   groups of a purpose and state, oldest first
    tomb       group -> ''                       evicted groups after those; ids are never reused
    part       group\\0 slot -> result           accepted results of a group
    partial    group\\0 slot\\0 number -> link   progress of open slots of an unfinished group
    reflection group\\0 name -> reflection       accepted reflections of a group
    group      group -> Group                    what else the record of a finished group has
    history    task id\\0 group -> ''            finished groups of a task, oldest first
    tag        purpose\\0 tag\\0 group -> ''     groups of a purpose and tag, oldest first
    draw       draw -> DrawRow                   batches that were drawn
    ledger     step -> LedgerRow                 batches that were trained

A draw, its step and tombs are removed some time after all its groups were evicted
(buffer.groups.pruning).

Every value except the schema carries a checksum (buffer.storage.value_checksums). Keys that are
group ids or integers sort in creation order.
"""

from r3l.errors import LimitExceeded
from r3l.records import Purpose

TABLES = tuple(
    "sys count task task_id state listed tomb part partial reflection group history tag draw "
    "ledger".split()
)
SCHEMA = 12  # version of the tables; that of the records is codec.SCHEMA
LAST_READERS = {9: "4b0a081a", 10: "c4203ed8", 11: "aaec48cd"}
"""The last commit of r3l that reads a store of an earlier schema."""
INSERTED = "inserted"  # tag of inserted groups and of their tasks (buffer.groups.insertion)
KEY_LIMIT = 400  # bytes of tag and task id together; LMDB's keys end at 511


def u64(number: int) -> bytes:
    """Encodes an integer as a key that sorts by value."""
    return number.to_bytes(8, "big")


def tag_prefix(purpose: Purpose, tag: str) -> bytes:
    """Returns the prefix shared by all keys of a purpose and tag."""
    return purpose.encode() + b"\0" + tag.encode() + b"\0"


def listed_prefix(purpose: str, state: str) -> bytes:
    """Returns the prefix shared by the keys of all groups of a purpose and state."""
    return purpose.encode() + b"\0" + state.encode() + b"\0"


def task_key(purpose: Purpose, tag: str, index: int) -> bytes:
    return tag_prefix(purpose, tag) + u64(index)


def task_id_key(purpose: Purpose, tag: str, task_id: str) -> bytes:
    """Returns a task id's key. Raises LimitExceeded if tag and id are too long or contain a NUL."""
    if "\0" in tag + task_id:
        raise LimitExceeded(f"tag {tag!r:.80}, task id {task_id!r:.80}: neither may contain NUL")
    size = len(tag.encode()) + len(task_id.encode())
    if size > KEY_LIMIT:
        raise LimitExceeded(
            f"tag {tag[:40]!r}, task id {task_id[:40]!r}: {size} bytes together; limit {KEY_LIMIT}"
        )
    return tag_prefix(purpose, tag) + task_id.encode()


def part_key(group_id: str, slot: int) -> bytes:
    """Returns the key of a slot in the table `part`. The slot's keys in the table `partial` begin
    with the same bytes."""
    return group_id.encode() + b"\0" + f"{slot:06d}".encode()


def link_key(group_id: str, slot: int, number: int) -> bytes:
    """Returns the key of a link of a slot's progress (buffer.groups.progress)."""
    return part_key(group_id, slot) + b"\0" + f"{number:06d}".encode()


def reflection_key(group_id: str, name: str) -> bytes:
    """Returns the key of a reflection in the table `reflection`."""
    return group_id.encode() + b"\0" + name.encode()


def history_key(task_id: str, group_id: str) -> bytes:
    """Returns the key of a finished group in its task's history."""
    return task_id.encode() + b"\0" + group_id.encode()
