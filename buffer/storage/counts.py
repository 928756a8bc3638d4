"""The figures a store keeps about itself: name -> number, written by whoever changes them.

    group/PURPOSE/STATE    groups in the store
    bytes                  bytes of their accepted results
    made                   groups ever made
    evicted/PURPOSE/STATE  groups that retention removed, by the state they were in
    evicted_bytes          bytes of their accepted results
    eval_done/TAG          finished evaluation groups, evicted ones too
    puts, draws, leases …  what the verbs count

They change in the transaction of what they count, so that `made` is always the sum of all
group/… and all evicted/…, whatever was killed when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from buffer.storage.rows import Drop, GroupRow
from r3l.records import GROUP_STATES, Purpose

PURPOSES: tuple[Purpose, ...] = ("train", "eval")


def present(row: GroupRow) -> dict[str, int]:
    """What a group adds while it is in the store."""
    return {f"group/{row.purpose}/{row.state}": 1, "bytes": row.nbytes}


def lasting(row: GroupRow) -> dict[str, int]:
    """What a group adds for as long as the store lives, evicted or not."""
    return {f"eval_done/{row.tag}": 1} if row.purpose == "eval" and row.closed else {}


def dropped(row: GroupRow) -> Counter[Drop]:
    """What of a group will never be trained on: failed slots, and all of it if it expired."""
    lost: Counter[Drop] = Counter()
    for failure in row.failures:
        role, cause = failure.split("/", 1)
        lost[cause, "base" if role == "base" else "distilled", row.task_id] += 1
    if row.state == "expired":
        lost[row.cause, "group", row.task_id] += 1
        lost[row.cause, "base", row.task_id] += row.done_base
        lost[row.cause, "distilled", row.task_id] += row.done - row.done_base
    return +lost


def added(before: GroupRow | None, after: GroupRow) -> dict[str, int]:
    """By how much each figure changes when a group goes from one state to another."""
    change = present(after) | lasting(after)
    was = {"made": -1} if before is None else present(before) | lasting(before)
    for name, amount in was.items():
        change[name] = change.get(name, 0) - amount
    return change


def evicted(row: GroupRow) -> dict[str, int]:
    """By how much each figure changes when a group is evicted."""
    gone = {name: -amount for name, amount in present(row).items()}
    return gone | {f"evicted/{row.purpose}/{row.state}": 1, "evicted_bytes": row.nbytes}


def held(counts: Mapping[str, int]) -> int:
    """Groups in the store."""
    return sum(counts.get(f"group/{p}/{s}", 0) for p in PURPOSES for s in GROUP_STATES)


def under(counts: Mapping[str, int], kind: str) -> Counter[str]:
    """The figures named KIND/…, by the rest of their name."""
    prefix = kind + "/"
    return Counter({k.removeprefix(prefix): n for k, n in counts.items() if k.startswith(prefix)})


TASKS_SHOWN = 20


def group_drops(drops: Counter[Drop]) -> dict[str, int]:
    """Dropped groups by cause."""
    counts: Counter[str] = Counter()
    for (cause, what, _), count in drops.items():
        counts[cause] += count * (what == "group")
    return dict(+counts)


def slot_drops(drops: Counter[Drop]) -> dict[str, int]:
    """Failed slots and attempts lost with their group, by "role/cause"."""
    counts: Counter[str] = Counter()
    for (cause, what, _), count in drops.items():
        counts[f"{what}/{cause}"] += count * (what != "group")
    return dict(+counts)


def drops_by_task(drops: Counter[Drop]) -> dict[str, dict[str, int]]:
    """`slot_drops` of the TASKS_SHOWN tasks that lost most, the worst first."""
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
