"""Evicts the oldest closed groups until every limit holds. A group stays for `grace_s` seconds
after closing, because a resumed learner may read the group again. The limit in GiB counts only
records in the store, so it never evicts an archived group."""

from collections.abc import Container, Iterator
from itertools import islice

from buffer.groups.pruning import prune
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.counts import under
from buffer.storage.stored_rows import GroupRow
from r3l.run.settings.buffer import RetentionConfig
from r3l.text import GIB

HOUR_S = 3600.0
CHUNK = 64  # groups of one transaction, so that other requests do not wait for long


def evict(work: UnitOfWork, limits: RetentionConfig, most: int = CHUNK) -> list[str]:
    """Evicts up to `most` groups that are due, oldest first. Returns their ids."""
    rows = list(islice(_due(work, limits), most))
    for row in rows:
        work.evict(row)
    if rows:
        prune(work, limits.grace_s)
    return [row.group_id for row in rows]


def _due(work: UnitOfWork, limits: RetentionConfig) -> Iterator[GroupRow]:
    """Yields the groups to evict, oldest first."""
    if limits.unlimited:
        return
    counts, version, now = work.index.counts, work.index.progress.version, work.now
    groups, nbytes = sum(under(counts, "group").values()), counts["bytes"]
    gone = set[str]()
    for row in work.txn.rows(skip=work.index.live):
        if now - min(row.times.values()) < limits.grace_s:  # as are all that were made later
            return
        if now - row.times[row.state] < limits.grace_s:
            continue
        behind = version - row.oldest_version if row.oldest_version >= 0 else float("inf")
        if row.source:  # it has no age in versions
            behind = 0
        measured = (
            (groups, limits.groups),
            (0 if row.archived else nbytes / GIB, limits.gib),
            ((now - min(row.times.values())) / HOUR_S, limits.hours),
            (behind, limits.versions),
        )
        if not any(limit is not None and value > limit for value, limit in measured):
            if row.source:  # those after it may be too old in versions
                continue
            break
        groups, nbytes = groups - 1, nbytes - (0 if row.archived else row.nbytes)
        gone.add(row.group_id)
        yield row
    if limits.gib is not None and counts["archived"]:
        yield from _too_large(work, limits.gib, limits.grace_s, nbytes, gone)


def _too_large(
    work: UnitOfWork, gib: float, grace_s: float, nbytes: int, gone: Container[str]
) -> Iterator[GroupRow]:
    """Yields groups, oldest first, until the records in the store have `gib` GiB. Passes over
    archived groups, which take no room. `nbytes`: the size of the records without the groups in
    `gone`."""
    for key in work.txn.keys("group"):
        name = key.decode()
        if nbytes / GIB <= gib:
            return
        if name in gone or name in work.index.live:
            continue
        row = work.txn.existing_row(name)
        if work.now - min(row.times.values()) < grace_s:  # as are all that were made later
            return
        if work.now - row.times[row.state] >= grace_s:
            nbytes -= row.nbytes
            yield row
