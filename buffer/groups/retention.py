"""Retention: evicts groups so that the store stays within its limits.

Only closed groups are evicted: trained groups, expired groups and finished evaluations. They stay
for at least `grace_s` seconds, because a learner may still read an evaluation or resume from its
last checkpoint. The oldest groups go first, until every limit holds.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from itertools import islice
from typing import Any

from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.counts import held
from buffer.storage.rows import Evicted, GroupRow
from buffer.storage.transaction import Txn
from r3l import config
from r3l.settings.buffer import RetentionConfig

GIB = 1 << 30
HOUR_S = 3600.0
CHUNK = 64  # groups of one transaction, so that other requests do not wait for long


def parse_limits(values: Mapping[str, Any]) -> RetentionConfig:
    """Reads limits from plain values; raises UserError if a value is invalid."""
    return config.parse(RetentionConfig, values)


def evict(work: UnitOfWork, limits: RetentionConfig, most: int = CHUNK) -> Evicted:
    """Evict up to `most` of the groups that are due."""
    index = work.index
    due = _due(
        work.txn, limits, work.now, index.counts, index.progress.version, not_closed=index.live
    )
    rows = list(islice(due, most + 1))
    for row in rows[:most]:
        work.evict(row)
    return _summary(rows[:most], more=len(rows) > most)


def would_evict(txn: Txn, limits: RetentionConfig, now: float) -> Evicted:
    """Sums up everything that `evict` would remove."""
    return _summary(list(_due(txn, limits, now, txn.counts(), txn.progress().version)))


def _due(
    txn: Txn,
    limits: RetentionConfig,
    now: float,
    counts: Mapping[str, int],
    version: int,
    not_closed: Container[str] = (),
) -> Iterator[GroupRow]:
    """Yields the groups to evict, oldest first. `not_closed`: ids to skip."""
    if limits.unlimited:
        return
    groups, nbytes = held(counts), counts["bytes"]
    for row in txn.rows(skip=not_closed):
        if not row.closed or now - row.times[row.state] < limits.grace_s:
            continue
        measured = (
            (groups, limits.groups),
            (nbytes / GIB, limits.gib),
            ((now - row.times["leased"]) / HOUR_S, limits.hours),
            (
                version - row.oldest_version if row.oldest_version >= 0 else float("inf"),
                limits.versions,
            ),
        )
        if not any(limit is not None and value > limit for value, limit in measured):
            return
        groups, nbytes = groups - 1, nbytes - row.nbytes
        yield row


def _summary(rows: list[GroupRow], more: bool = False) -> Evicted:
    """Sums up the number, size and id range of the groups."""
    if not rows:
        return Evicted()
    nbytes = sum(row.nbytes for row in rows)
    return Evicted(len(rows), nbytes, rows[0].group_id, rows[-1].group_id, more)
