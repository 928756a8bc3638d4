"""The counts of a store: name -> number.

    group/PURPOSE/STATE    groups in the store
    bytes                  bytes of their accepted results
    made                   groups ever made
    evicted/PURPOSE/STATE  evicted groups, by their last state
    evicted_bytes          bytes of their accepted results
    eval_done/TAG          finished evaluation groups, including evicted ones
    puts, draws, leases …  what the operations count

A count changes in the same transaction as what it counts. So `made` is always the sum of all
group/… and all evicted/… counts, even after a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import get_args

from buffer.storage.rows import Drop, GroupRow
from r3l.records import GROUP_STATES, Purpose

PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
TASKS_SHOWN = 20


def present(row: GroupRow) -> dict[str, int]:
    """Returns the counts that a group adds while it is in the store."""
    return {f"group/{row.purpose}/{row.state}": 1, "bytes": row.nbytes}


def lasting(row: GroupRow) -> dict[str, int]:
    """Returns the counts that a group adds for good, even after its eviction."""
    return {f"eval_done/{row.tag}": 1} if row.purpose == "eval" and row.closed else {}


def dropped(row: GroupRow) -> Counter[Drop]:
    """Counts results lost to training: failed slots, and all attempts of an expired group."""
    drops: Counter[Drop] = Counter()
    for failure in row.failures:
        role, cause = failure.split("/", 1)
        drops[cause, "base" if role == "base" else "distilled", row.task_id] += 1
    if row.state == "expired":
        drops[row.cause, "group", row.task_id] += 1
        drops[row.cause, "base", row.task_id] += row.done_base
        drops[row.cause, "distilled", row.task_id] += row.done - row.done_base
    return +drops


def added(before: GroupRow | None, after: GroupRow) -> dict[str, int]:
    """Returns how each count changes when a group's row is replaced. `before` is None if the
    group is new."""
    change = present(after) | lasting(after)
    was = {"made": -1} if before is None else present(before) | lasting(before)
    for name, amount in was.items():
        change[name] = change.get(name, 0) - amount
    return change


def evicted(row: GroupRow) -> dict[str, int]:
    """Returns how each count changes when a group is evicted."""
    gone = {name: -amount for name, amount in present(row).items()}
    return gone | {f"evicted/{row.purpose}/{row.state}": 1, "evicted_bytes": row.nbytes}


def held(counts: Mapping[str, int]) -> int:
    """Number of groups in the store."""
    return sum(counts.get(f"group/{p}/{s}", 0) for p in PURPOSES for s in GROUP_STATES)


def under(counts: Mapping[str, int], kind: str) -> Counter[str]:
    """Returns the counts named KIND/…, keyed by what follows the slash."""
    prefix = kind + "/"
    return Counter({k.removeprefix(prefix): n for k, n in counts.items() if k.startswith(prefix)})


def group_drops(drops: Counter[Drop]) -> dict[str, int]:
    """Counts the expired groups, keyed by cause."""
    counts: Counter[str] = Counter()
    for (cause, what, _), count in drops.items():
        counts[cause] += count * (what == "group")
    return dict(+counts)


def slot_drops(drops: Counter[Drop]) -> dict[str, int]:
    """Counts failed slots and the attempts of expired groups, keyed by "role/cause"."""
    counts: Counter[str] = Counter()
    for (cause, what, _), count in drops.items():
        counts[f"{what}/{cause}"] += count * (what != "group")
    return dict(+counts)


def drops_by_task(drops: Counter[Drop]) -> dict[str, dict[str, int]]:
    """Returns `slot_drops` for the TASKS_SHOWN tasks with the most drops, worst first."""
    total: Counter[str] = Counter()
    for (_, what, task), count in drops.items():
        total[task] += count * (what != "group")
    worst: dict[str, Counter[Drop]] = {
        task: Counter() for task, _ in (+total).most_common(TASKS_SHOWN)
    }
    for drop, count in drops.items():
        if drop[2] in worst:
            worst[drop[2]][drop] = count
    return {task: slot_drops(own) for task, own in worst.items()}
