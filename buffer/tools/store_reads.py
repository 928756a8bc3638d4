"""Reads a store directly, not through its service. The service may be running."""

from collections.abc import Iterator
from typing import Any

from buffer.client.call_results import Draw
from buffer.server import lookups
from buffer.storage import counts, result_checksums
from buffer.storage.store import Store
from buffer.storage.stored_rows import Regrade, Status
from buffer.tools import group_facts
from r3l.errors import NotFound
from r3l.records import Group


def rows(store: Store, *, newest_first: bool = False) -> Iterator[dict[str, Any]]:
    """Yields the facts (buffer.tools.group_facts) of all groups, in creation order or backwards."""
    with store.read() as txn:
        for row in txn.rows(backwards=newest_first):
            yield group_facts.facts(row)


def size(store: Store) -> int:
    """Returns how many groups a store has."""
    with store.read() as txn:
        return txn.size("state")


def group(store: Store, group_id: str) -> Group:
    """Returns a group with what was accepted so far. Raises RecordError if it is damaged."""
    with store.read() as txn:
        return result_checksums.read(txn, txn.existing_row(group_id))


def replay(store: Store, step: int) -> tuple[list[Group], list[str]]:
    """Returns an optimizer step's batch: the groups still stored, and the ids of evicted groups.

    Raises NotFound if the step is not in the ledger, RecordError if a group is damaged.
    """
    with store.read() as txn:
        trained = txn.existing_step(step)
        gone = [group_id for group_id in trained.groups if txn.evicted(group_id)]
    return [group(store, group_id) for group_id in trained.groups if group_id not in gone], gone


def trained_draw(store: Store, step: int) -> Draw:
    """Returns a step's draw exactly as the learner got it. Raises NotFound if the draw is unknown
    or incomplete. Raises RecordError if a group is damaged."""
    groups, gone = replay(store, step)
    if gone:
        raise NotFound(
            f"step {step}: {len(gone)} of its {len(groups) + len(gone)} groups were evicted "
            f"({gone[0]}); raise buffer.retention to keep groups longer"
        )
    with store.read() as txn:
        drawn = txn.draw(txn.existing_step(step).draw_id)
        if drawn is None:
            raise NotFound(f"step {step}: its draw is not in the store")
        now = tuple(Status(group.state, group.cause, group.times) for group in groups)
        draw = Draw.read(drawn, now, list(lookups.drawn_records(txn, drawn)))
    if draw.recall_lost:
        raise NotFound(
            f"step {step}: {draw.recall_lost} recalled attempts were evicted or are damaged"
        )
    return draw


def died_of_age(store: Store) -> tuple[int, float]:
    """Returns how many groups have expired since the store was made because they were too old, and
    their share of all trained and expired groups."""
    with store.read() as txn:
        known = txn.counts()
    return known["drop/group/stale"], counts.stale_share(known)


def regrades(store: Store) -> tuple[Regrade, ...]:
    """Returns the regrades that replaced the store's rewards since its run, oldest first."""
    with store.read() as txn:
        return txn.regrades()


def fingerprints(store: Store, version: int) -> dict[str, list[str]]:
    """Returns the fingerprints that each group has for policy `version`, keyed by group id."""
    with store.read() as txn:
        rows = ((row.group_id, row.fingerprints.get(version)) for row in txn.rows())
        return {group_id: found.split("|") for group_id, found in rows if found}
