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
from collections.abc import Iterator, Mapping

from buffer.entry import Drop, Entry
from r3l.records import GROUP_STATES, Purpose

PURPOSES: tuple[Purpose, ...] = ("train", "eval")


def present(entry: Entry) -> Iterator[tuple[str, int]]:
    """What a group adds while it is in the store."""
    yield f"group/{entry.purpose}/{entry.state}", 1
    yield "bytes", entry.nbytes


def lasting(entry: Entry) -> Iterator[tuple[str, int]]:
    """What a group adds for as long as the store lives, evicted or not."""
    if entry.closed and entry.purpose == "eval":
        yield f"eval_done/{entry.tag}", 1


def dropped(entry: Entry) -> Counter[Drop]:
    """What of a group will never be trained on: failed slots, and all of it if it expired."""
    lost: Counter[Drop] = Counter()
    for failure in entry.failures:
        role, cause = failure.split("/", 1)
        lost[cause, "base" if role == "base" else "distilled", entry.task_id] += 1
    if entry.state == "expired":
        lost[entry.cause, "group", entry.task_id] += 1
        lost[entry.cause, "base", entry.task_id] += entry.done_base
        lost[entry.cause, "distilled", entry.task_id] += entry.done - entry.done_base
    return +lost


def added(before: Entry | None, after: Entry) -> Counter[str]:
    """By how much each figure changes when a group goes from one state to another."""
    change: Counter[str] = Counter()
    for name, amount in (*present(after), *lasting(after)):
        change[name] += amount
    if before is None:
        change["made"] += 1
    else:
        for name, amount in (*present(before), *lasting(before)):
            change[name] -= amount
    return change


def evicted(entry: Entry) -> Counter[str]:
    """By how much each figure changes when a group is evicted."""
    change = Counter({name: -amount for name, amount in present(entry)})
    change[f"evicted/{entry.purpose}/{entry.state}"] += 1
    change["evicted_bytes"] += entry.nbytes
    return change


def held(counts: Mapping[str, int]) -> int:
    """Groups in the store."""
    return sum(counts.get(f"group/{p}/{s}", 0) for p in PURPOSES for s in GROUP_STATES)


def under(counts: Mapping[str, int], kind: str) -> Counter[str]:
    """The figures named KIND/…, by the rest of their name."""
    prefix = kind + "/"
    return Counter({k.removeprefix(prefix): n for k, n in counts.items() if k.startswith(prefix)})
