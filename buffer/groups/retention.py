"""Evicts the oldest closed groups until every limit holds. A group stays for `grace_s` seconds
after closing, because a resumed learner may read the group again."""

from collections.abc import Iterator
from itertools import islice

from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.counts import under
from buffer.storage.stored_rows import GroupRow
from r3l.run.settings.buffer import RetentionConfig

GIB = 1 << 30
HOUR_S = 3600.0
CHUNK = 64  # groups of one transaction, so that other requests do not wait for long


def evict(work: UnitOfWork, limits: RetentionConfig, most: int = CHUNK) -> list[str]:
    """Evicts up to `most` groups that are due, oldest first. Returns their ids."""
    rows = list(islice(_due(work, limits), most))
    for row in rows:
        work.evict(row)
    return [row.group_id for row in rows]


def _due(work: UnitOfWork, limits: RetentionConfig) -> Iterator[GroupRow]:
    """Yields the groups to evict, oldest first."""
    if limits.unlimited:
        return
    counts, version, now = work.index.counts, work.index.progress.version, work.now
    groups, nbytes = sum(under(counts, "group").values()), counts["bytes"]
    for row in work.txn.rows(skip=work.index.live):
        if now - row.times[row.state] < limits.grace_s:
            continue
        behind = version - row.oldest_version if row.oldest_version >= 0 else float("inf")
        if row.source:  # it has no age in versions
            behind = 0
        measured = (
            (groups, limits.groups),
            (nbytes / GIB, limits.gib),
            ((now - min(row.times.values())) / HOUR_S, limits.hours),
            (behind, limits.versions),
        )
        if not any(limit is not None and value > limit for value, limit in measured):
            if row.source:  # those after it may be too old in versions
                continue
            return
        groups, nbytes = groups - 1, nbytes - row.nbytes
        yield row
