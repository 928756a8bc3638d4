"""Makes the groups of a dead consumer drawable again after a deadline.

An open draw expires `draw_s` seconds after its consumer's last request about draws. Deadlines are
not stored. A restart of the service sets them again.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace

from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.stored_rows import DrawRow
from r3l.records import GroupState

log = logging.getLogger(__name__)


def extend(work: UnitOfWork, consumer: str) -> None:
    """Restarts the deadline of a consumer's open draws."""
    holders = {drawn.consumer for drawn in work.index.draws.values()}
    known = {name: at for name, at in work.index.last_seen.items() if name in holders}
    work.index.last_seen = known | {consumer: work.now}


def expire_overdue(work: UnitOfWork) -> None:
    """Expires the draws of consumers that were silent for more than `draw_s` seconds."""
    index, limit = work.index, work.config.draw_s
    for name in {drawn.consumer for drawn in index.draws.values()}:
        silent = work.now - index.last_seen.setdefault(name, work.now)
        if 0 < limit < silent:
            count = return_draws(work, name, "clock")
            log.warning(
                "%s held %d drawn groups and was silent for %.0f s (buffer.draw_s %.0f); these "
                "groups can be drawn again now",
                name, count, silent, limit,
            )  # fmt: skip


def return_draws(work: UnitOfWork, consumer: str, by: Literal["release_draws", "clock"]) -> int:
    """Makes the uncommitted groups of a consumer drawable again and returns their number."""
    returned = 0
    for drawn in [d for d in work.index.draws.values() if d.consumer == consumer]:
        for row in map(work.row, drawn.groups):
            if row.state == "drawn" and row.draw_id == drawn.draw_id:
                before: GroupState = "complete" if row.is_fresh else "trained"
                work.save(row.with_changes(state=before, draw_id=0), by)
                returned += 1
        work.save_draw(replace(drawn, outcome="expired" if by == "clock" else "released"))
        if by == "clock":
            work.count("draws_expired")
    return returned


def is_free(work: UnitOfWork, group_id: str) -> bool:
    """Whether a group of an expired draw is free: it can be drawn again, but the old consumer may
    still commit or discard it."""
    row = work.find(group_id)
    if row is None:
        return False
    again = row.state == "trained" and row.draw_id == 0
    return row.state == "complete" or (again and len(row.steps) < work.config.sampler.reuse)


def held_by(draws: Mapping[int, DrawRow]) -> dict[str, int]:
    """Returns the number of groups in open draws, keyed by consumer."""
    held: Counter[str] = Counter()
    for drawn in draws.values():
        held[drawn.consumer] += len(drawn.groups)
    return dict(held)


def describe_holders(work: UnitOfWork) -> str:
    """Describes up to three consumers that hold drawn groups. Returns "" if there are none."""
    seen, limit = work.index.last_seen, work.config.draw_s
    after = f", expires after {limit:.0f} s" if limit else ""
    return ", ".join(
        f"{name:.80} holds {count} drawn groups (last seen "
        f"{work.now - seen.get(name, work.now):.0f} s ago{after})"
        for name, count in sorted(held_by(work.index.draws).items())[:3]
    )
