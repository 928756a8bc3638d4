"""Retention: which groups leave the store so that it stays within its limits.

Only closed groups go: trained, expired, or finished evaluations. Whatever the limits say, groups
that are leased, complete or drawn stay, and closed ones stay for `grace_s` seconds more, because a
learner may still read an evaluation or go back to its last checkpoint. The oldest go first, until
none that is left breaks a limit.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from buffer.storage.counts import held
from buffer.storage.rows import Evicted, GroupRow
from r3l import config
from r3l.config import RetentionConfig

if TYPE_CHECKING:
    from buffer.groups.unit_of_work import UnitOfWork
    from buffer.storage.transaction import Txn

GIB = 1 << 30
HOUR_S = 3600.0
CHUNK = 64  # groups of one transaction, so that other requests do not wait for long


def parse_limits(values: Mapping[str, Any]) -> RetentionConfig:
    """Limits from plain values; raises UserError for bad ones."""
    return config.parse(RetentionConfig, values)


def plan(
    txn: Txn, limits: RetentionConfig, now: float, live: Container[str] = ()
) -> Iterator[GroupRow]:
    """The groups that have to go, oldest first. `live`: groups that are known not to be closed."""
    if limits.unlimited:
        return
    figures = txn.counts()
    yield from _walk(
        txn, limits, now, held(figures), figures["bytes"], txn.progress().version, live
    )


def evict(work: UnitOfWork, limits: RetentionConfig, most: int = CHUNK) -> Evicted:
    """Remove up to `most` of the groups that have to go."""
    if limits.unlimited:
        return Evicted()
    figures, version = work.index.counts, work.index.progress.version
    walk = _walk(
        work.txn, limits, work.now, held(figures), figures["bytes"], version, work.index.live
    )
    gone = list(islice(walk, most + 1))
    for row in gone[:most]:
        work.evict(row)
    return summary(gone[:most], more=len(gone) > most)


def summary(rows: list[GroupRow], more: bool = False) -> Evicted:
    """Number, size and range of the groups."""
    if not rows:
        return Evicted()
    nbytes = sum(row.nbytes for row in rows)
    return Evicted(len(rows), nbytes, rows[0].group_id, rows[-1].group_id, more)


def _walk(
    txn: Txn,
    limits: RetentionConfig,
    now: float,
    groups: int,
    nbytes: int,
    version: int,
    live: Container[str],
) -> Iterator[GroupRow]:
    for row in txn.rows(skip=live):
        if not row.closed or now - row.times.get(row.state, 0.0) < limits.grace_s:
            continue
        age_s = now - row.times.get("leased", 0.0)
        behind = version - row.oldest if row.oldest >= 0 else float("inf")
        if not (
            (limits.groups is not None and groups > limits.groups)
            or (limits.gib is not None and nbytes > limits.gib * GIB)
            or (limits.hours is not None and age_s > limits.hours * HOUR_S)
            or (limits.versions is not None and behind > limits.versions)
        ):
            return
        groups, nbytes = groups - 1, nbytes - row.nbytes
        yield row
