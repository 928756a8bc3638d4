"""Defines the states of groups and slots, and says which triggers may change them.

    lease          put              put             draw          commit
    ─────► leased ─────► filling ──────────► complete ────► drawn ──────► trained
                                                ▲ release_draws, │           │
                                                │ clock          │           │
                                                ├────────────────┘           │
                                                └────────────────────────────┘ set_version

An inserted group (buffer.groups.insertion) is `trained` from its first moment on, and again when
its draw is returned or its step is taken back.

A trigger is an operation of the buffer, or `clock` when a deadline passes. A move from a state to
itself changes only the group's lease, slots, reflections, steps or priority. When an expired draw
is committed or discarded, its groups skip `drawn`. docs/architecture.md says when groups expire and
are evicted.

A slot is open until a put resolves it. A resolved slot never changes. UnitOfWork checks every move
before it writes the row. An illegal move is a fault of this program and aborts the transaction.
"""

from collections.abc import Callable
from typing import Literal

from buffer.storage.stored_rows import GroupRow
from r3l.errors import IllegalMove
from r3l.records import GroupState

Trigger = Literal[
    "lease", "renew", "release", "put", "clock", "draw", "commit", "release_draws", "discard",
    "set_version", "evict", "insert", "update_priorities",
]  # fmt: skip
State = GroupState | Literal["new", "evicted"]

MOVES: dict[tuple[State, State], tuple[Trigger, ...]] = {
    ("new", "leased"): ("lease",),
    ("new", "trained"): ("insert",),
    ("leased", "leased"): ("lease", "renew", "release", "clock", "put", "update_priorities"),
    ("leased", "filling"): ("put",),
    ("leased", "complete"): ("put",),
    ("leased", "expired"): ("put",),
    ("filling", "filling"): ("lease", "renew", "release", "clock", "put", "update_priorities"),
    ("filling", "complete"): ("put",),
    ("filling", "expired"): ("put", "clock"),
    ("complete", "complete"): ("update_priorities",),
    ("complete", "drawn"): ("draw",),
    ("complete", "trained"): ("commit",),
    ("complete", "expired"): ("draw", "discard"),
    ("complete", "evicted"): ("evict",),
    ("drawn", "drawn"): ("set_version", "update_priorities"),
    ("drawn", "complete"): ("release_draws", "clock"),
    ("drawn", "trained"): ("release_draws", "clock", "commit"),
    ("drawn", "expired"): ("discard",),
    ("trained", "trained"): ("commit", "set_version", "update_priorities"),
    ("trained", "complete"): ("set_version",),
    ("trained", "drawn"): ("draw",),
    ("trained", "expired"): ("discard",),
    ("trained", "evicted"): ("evict",),
    ("expired", "expired"): ("set_version",),
    ("expired", "evicted"): ("evict",),
}
RULES: dict[GroupState, tuple[str, Callable[[GroupRow], bool]]] = {
    "leased": ("no slot is resolved", lambda row: not row.resolved_slots),
    "filling": ("some slots are resolved", lambda row: 0 < len(row.resolved_slots) < row.slots),
    "complete": (
        "all slots are resolved, no step trained on it, and it was not inserted",
        lambda row: row.all_resolved and row.is_fresh,
    ),
    "drawn": (
        "it is a whole training group",
        lambda row: row.all_resolved and row.purpose == "train",
    ),
    "trained": (
        "all slots are resolved, and a step trained on it or it was inserted",
        lambda row: row.all_resolved and not row.is_fresh,
    ),
    "expired": ("it has a cause", lambda row: bool(row.cause)),
}


def check_move(before: GroupRow | None, after: GroupRow, by: Trigger) -> None:
    """Raises IllegalMove if the change is not allowed. `before` is None for a new row."""
    state: State = "new" if before is None else before.state
    if by not in MOVES.get((state, after.state), ()):
        raise _illegal(after, by, f"cannot move a group from {state} to {after.state}")
    if rule := broken_rule(after):
        raise _illegal(after, by, rule)
    _check_slots(before, after, by)


def broken_rule(row: GroupRow) -> str:
    """Returns the rule that a row breaks, or "" if the row fits its state."""
    rule, holds = RULES[row.state]
    return "" if holds(row) else f"a group is {row.state} only if {rule}"


def check_evict(row: GroupRow) -> None:
    """Raises IllegalMove unless the group is closed: trained, expired or a finished evaluation."""
    if not row.closed:
        raise _illegal(row, "evict", f"cannot remove a {row.purpose} group that is {row.state}")


def _check_slots(before: GroupRow | None, after: GroupRow, by: Trigger) -> None:
    kept = () if before is None else before.resolved_slots
    if after.resolved_slots == kept:
        return
    new = after.resolved_slots[len(kept) :]
    still_open = set(range(after.slots)) - set(kept)
    if after.resolved_slots[: len(kept)] != kept or len(set(new) & still_open) < len(new):
        raise _illegal(after, by, "can resolve each slot of the plan once, and no other slot")
    done, failed = after.done, len(after.failures)
    if before is not None:
        done, failed = done - before.done, failed - len(before.failures)
    if by not in ("put", "insert") or min(done, failed, len(new) - done - failed) < 0:
        why = f"cannot resolve {len(new)} slots, {done} done and {failed} failed"
        raise _illegal(after, by, why)


def _illegal(row: GroupRow, by: Trigger, why: str) -> IllegalMove:
    return IllegalMove(
        f"group {row.group_id}: trigger {by}: {why} (buffer.groups.states); report this fault",
        group_id=row.group_id,
        state=row.state,
    )
