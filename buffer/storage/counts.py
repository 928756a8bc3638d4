"""The counts of a store: name -> number.

    group/PURPOSE/STATE    groups in the store
    bytes                  bytes of the accepted results and reflections in the store
    archived               groups whose record is in the archive
    archived_bytes         the bytes of these groups' results and reflections
    archive_failed/KIND    failures to archive groups
    made                   groups ever made
    evicted/PURPOSE/STATE  evicted groups, by their last state
    evicted_bytes          the same for evicted groups
    eval_done/TAG          finished evaluation groups, including evicted ones
    drop/group/CAUSE       expired groups, including evicted ones
    replaced/CAUSE         expired groups that the algorithm refused
    drop/ROLE/CAUSE        failed slots, and attempts of expired groups
    partial_dropped/CAUSE  partial attempts that no actor can continue
    algorithm_failed/NAME  failed calls of the algorithm's method NAME
    inserted/untrained     inserted groups in the store that wait for their first step
    inserted/evicted       inserted groups that were evicted before their first step
    draws_pruned           draws that were removed, with their steps (buffer.groups.pruning)
    puts, draws, leases …  what the operations count

A count changes in the same transaction as what it counts. So `made` is always the sum of all
group/… and all evicted/… counts, even after a crash.
"""

from collections import Counter
from collections.abc import Mapping

from buffer.storage.stored_rows import GroupRow


def present(row: GroupRow) -> dict[str, int]:
    """Returns what a group contributes to the counts while it is in the store."""
    own = {f"group/{row.purpose}/{row.state}": 1}
    own |= {"archived": 1, "archived_bytes": row.nbytes} if row.archived else {"bytes": row.nbytes}
    waits = row.source and row.state == "trained" and not row.steps
    return own | ({"inserted/untrained": 1} if waits else {})


def lasting(row: GroupRow) -> Counter[str]:
    """Returns what a group adds to the counts permanently, even after its eviction."""
    own = () if row.source else row.failures  # those of an inserted group are not this run's
    counts = Counter(f"drop/{failure}" for failure in own)
    if row.purpose == "eval" and row.closed:
        counts[f"eval_done/{row.tag}"] = 1
    if row.state == "expired":
        counts[f"drop/group/{row.cause}"] += 1
        base = len(row.base_rewards)
        counts[f"drop/base/{row.cause}"] += base
        counts[f"drop/distilled/{row.cause}"] += row.done - base
        if row.replaced:
            counts[f"replaced/{row.cause}"] = 1
    return +counts


def added(before: GroupRow | None, after: GroupRow) -> dict[str, int]:
    """Returns how each count changes when a group's row changes from `before` to `after`. `before`
    is None if the group is new."""
    change = Counter(present(after) | lasting(after))
    change.subtract({"made": -1} if before is None else present(before) | lasting(before))
    return change


def evicted(row: GroupRow) -> dict[str, int]:
    """Returns how each count changes when a group is evicted."""
    gone = {name: -amount for name, amount in present(row).items()}
    lost = {"inserted/evicted": 1} if "inserted/untrained" in gone else {}
    return gone | lost | {f"evicted/{row.purpose}/{row.state}": 1, "evicted_bytes": row.nbytes}


def under(counts: Mapping[str, int], kind: str) -> Counter[str]:
    """Returns the counts named KIND/…, keyed by what follows the slash."""
    prefix = kind + "/"
    return Counter({k.removeprefix(prefix): n for k, n in counts.items() if k.startswith(prefix)})


def trained(counts: Mapping[str, int]) -> int:
    """Counts the groups that a step trained on. Leaves out inserted groups that wait for a step."""
    waiting = counts.get("inserted/untrained", 0) + counts.get("inserted/evicted", 0)
    there = counts.get("group/train/trained", 0) + counts.get("evicted/train/trained", 0)
    return there - waiting


def stale_share(counts: Mapping[str, int]) -> float:
    """Returns the share of the trained and expired groups that expired because they were too
    old; 0 if there are none."""
    ended = trained(counts) + sum(under(counts, "drop/group").values())
    return counts.get("drop/group/stale", 0) / ended if ended else 0.0


def slot_drops(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts failed slots. Also counts attempts of expired groups. The keys are "role/cause"."""
    drops = under(counts, "drop")
    return {name: n for name, n in drops.items() if not name.startswith("group/")}
