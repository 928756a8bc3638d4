"""Every legal move of a group happens in its life, every other one is refused by name."""

from typing import get_args

import pytest

from buffer import BufferClient
from buffer.groups import states
from buffer.groups.states import MOVES, RULES, Trigger, check_evict, check_move
from buffer.storage.stored_rows import GroupRow
from buffer.tools.verify import verify
from r3l.errors import IllegalMove
from r3l.records import GROUP_STATES, GroupPlan, SlotResult, Task
from r3l.run.settings.buffer import RetentionConfig
from tests.buffer.fakes import Desk, finished, thought

TRIGGERS = get_args(Trigger)
EVERYTHING = RetentionConfig(groups=0, grace_s=0.0)
SLOTS = (0, 1)


def _row(state, **changes):
    """A group of two slots that is in this state by every rule."""
    resolved = {"leased": (), "filling": SLOTS[:1], "expired": SLOTS[:1]}.get(state, SLOTS)
    fields = {
        "resolved_slots": resolved,
        "of": (-1,) * len(resolved),
        "played": resolved,
        "steps": (1,) if state == "trained" else (),
        "cause": "stale" if state == "expired" else "",
        "draw_id": 1 if state == "drawn" else 0,
    }
    return GroupRow("g1", "t", 0, GroupPlan(2), state=state, **fields | changes)


# ── the table ───────────────────────────────────────────────────────────────────────────────


def test_every_state_can_be_entered_and_left_and_every_operation_moves_something():
    assert {after for _, after in MOVES} - {"evicted"} == set(GROUP_STATES) == set(RULES)
    assert {before for before, _ in MOVES} - {"new"} == set(GROUP_STATES)
    assert {by for operations in MOVES.values() for by in operations} == set(TRIGGERS)


@pytest.mark.parametrize("by", TRIGGERS)
@pytest.mark.parametrize("after", GROUP_STATES)
@pytest.mark.parametrize("before", ["new", *GROUP_STATES])
def test_a_move_is_refused_unless_the_table_has_it(before, after, by):
    row = _row(after)
    was = (
        None
        if before == "new"
        else _row(before, resolved_slots=row.resolved_slots, played=row.played)
    )
    if by in MOVES.get((before, after), ()):
        check_move(was, row, by)
    else:
        with pytest.raises(IllegalMove, match=rf"g1: trigger {by}: .* from {before} to {after} "):
            check_move(was, row, by)


@pytest.mark.parametrize("state", GROUP_STATES)
@pytest.mark.parametrize("purpose", ["train", "eval"])
def test_only_a_closed_group_is_evicted(state, purpose):
    row = _row(state, purpose=purpose)
    if row.closed:
        check_evict(row)
        assert "evict" in MOVES[state, "evicted"]
    else:
        with pytest.raises(IllegalMove, match=f"remove a {purpose} group .*{state}"):
            check_evict(row)


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        (_row("leased", resolved_slots=SLOTS[:1]), "leased only if no slot"),
        (_row("filling", resolved_slots=()), "filling only if some slots"),
        (_row("filling", resolved_slots=SLOTS), "filling only if some slots"),
        (_row("complete", resolved_slots=SLOTS[:1]), "complete only if all slots"),
        (_row("complete", steps=(1,)), "complete only if .*no step"),
        (_row("drawn", resolved_slots=SLOTS[:1]), "drawn only if .*whole training"),
        (_row("drawn", purpose="eval"), "drawn only if .*whole training"),
        (_row("trained", steps=()), "trained only if .*a step"),
        (_row("expired", cause=""), "expired only if it has a cause"),
    ],
)
def test_a_row_that_breaks_the_rule_of_its_state_is_refused(row, rule):
    before, by = next((b, MOVES[b, a][0]) for b, a in MOVES if a == row.state)
    with pytest.raises(IllegalMove, match=rule):
        check_move(None if before == "new" else _row(before), row, by)


@pytest.mark.parametrize(
    ("by", "resolved", "done", "why"),
    [
        ("put", (SLOTS[1], SLOTS[0]), 2, "each slot .*once"),
        ("put", (SLOTS[0], SLOTS[0]), 2, "each slot .*once"),
        ("put", (SLOTS[0], 2), 2, "each slot .*once"),
        ("clock", SLOTS, 2, "cannot move a group"),
        ("put", SLOTS, 3, "resolve 1 slots, 2 done and 0 failed"),
        ("put", SLOTS, 0, "cannot resolve 1 slots, -1 done"),
    ],
)
def test_a_resolved_slot_never_changes_and_the_clock_resolves_none(by, resolved, done, why):
    state = "complete" if len(resolved) == 2 else "filling"
    after = _row(state, resolved_slots=resolved, played=(*SLOTS, SLOTS[0])[:done])
    with pytest.raises(IllegalMove, match=why):
        check_move(_row("filling"), after, by)


# ── lives ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def moves(monkeypatch):
    """Every move that was made: (from, to, by)."""
    seen = set()

    def check(before, after, by):
        check_move(before, after, by)
        seen.add(("new" if before is None else before.state, after.state, by))

    def gone(row):
        check_evict(row)
        seen.add((row.state, "evicted", "evict"))

    monkeypatch.setattr(states, "check_move", check)
    monkeypatch.setattr(states, "check_evict", gone)
    return seen


def _leased(desk):
    """Leases that are renewed, released, taken over; groups without a trajectory; reflections."""
    failed = SlotResult(0, "failed", cause="env")
    for first in ([], [finished(0)]):
        group = desk.lease("a", plan=GroupPlan(3)).group_id
        desk.put(group, [*first, thought(of=-1)])
        desk.renew([group])
        desk.release([group])
        assert desk.lease("b").group_id == group
        desk.now += 11
        assert desk.lease("c").group_id == group
        desk.put(group, [finished(slot) for slot in range(len(first), 2)], "c")
        desk.put(group, finished(2), "c")
    desk.put(desk.lease(plan=GroupPlan(2)).group_id, [finished(0), finished(1)])
    desk.put(desk.lease(plan=GroupPlan(1)).group_id, failed)
    group = desk.lease(plan=GroupPlan(2)).group_id
    desk.put(group, failed)
    desk.resolve(group, 1, "env")


def _overdue(desk):
    """A group that is too old before it is finished."""
    old = desk.lease(plan=GroupPlan(2)).group_id
    desk.put(old, finished())
    desk.release([old])
    desk.set_version(9)
    desk.lease(version=9)
    assert desk.row(old).cause == "stale"


def _drawn(desk):
    """Draws of a new group and of a trained one that are released, expire and are committed."""
    desk.complete()
    for step in (1, 2):
        desk.draw(1, step - 1)
        desk.release_draws()
        desk.commit(_expired_draw(desk, step - 1), step)
    desk.commit(desk.draw(1, 2).draw_id, 3)
    desk.draw(1, 3)
    desk.set_version(2)
    desk.release_draws()
    for version in (1, 0):
        desk.set_version(version)


def _expired_draw(desk, version=0):
    draw_id = desk.draw(1, version).draw_id
    desk.now += 61
    desk.lease(version=version)
    return draw_id


def _discarded(desk):
    """Draws that are discarded in time and late, of new groups and of trained ones; rewinds."""
    for _ in range(2):
        desk.complete()
        desk.discard(desk.draw(1).draw_id, "nonfinite")
        desk.complete()
        desk.discard(_expired_draw(desk), "nonfinite")
        desk.complete()
        desk.commit(desk.draw(1).draw_id, 1)
        desk.discard(_expired_draw(desk, 1), "nonfinite")
        desk.set_version(0)


def _evicted(desk):
    """Groups that are too old at a draw, and the eviction of everything that is closed."""
    desk.complete()
    desk.set_version(9)
    assert desk.draw(1, 9) is None
    desk.complete(9)
    desk.commit(desk.draw(1, 9).draw_id, 10)
    desk.add([Task("e", "workshop", 0)], "eval", "step-10")
    desk.put(desk.lease(version=10).group_id, finished(version=10))
    assert len(desk.evict(EVERYTHING)) == 3


def _inserted(desk):
    """A group that somebody inserts, drawn and given back."""
    group = desk.insert(Task("x", "elsewhere", 0), [finished()])
    desk.draw(1)
    desk.release_draws()
    assert desk.row(group).state == "trained"


def _prioritised(desk):
    """A group whose priority a consumer sets in each state."""
    group = desk.lease(plan=GroupPlan(2)).group_id
    for change in (
        lambda: desk.put(group, finished()),
        lambda: desk.put(group, finished(1, reward=1.0)),
        lambda: desk.draw(1),
        lambda: desk.commit(1, 1),
        lambda: None,
    ):
        assert desk.update_priorities({group: 0.5}) == 1
        change()


LIVES = (_leased, _overdue, _drawn, _discarded, _evicted, _inserted, _prioritised)


def test_every_legal_move_happens_in_some_life(tmp_path, tasks, moves):
    settings = {"groups_per_step": 50, "max_staleness": 4, "draw_s": 60.0, "sampler": {"reuse": 9}}
    for life in LIVES:
        desk = Desk(tmp_path / life.__name__, **settings)
        desk.add(tasks(9))
        life(desk)
        assert verify(desk.store) == []
        desk.store.close()
    legal = {(before, after, by) for (before, after), bys in MOVES.items() for by in bys}
    assert legal - moves == set()


def test_an_illegal_move_aborts_its_transaction(desk, tasks):
    desk.add(tasks(2))
    group = desk.complete()
    with pytest.raises(IllegalMove, match=r"put: .*complete to drawn"):
        desk.do(lambda work: work.move(work.row(group), "drawn", "put", draw_id=1))
    assert desk.row(group).state == "complete"


def test_a_service_undoes_an_illegal_move_names_it_and_goes_on(serve, tasks):
    change = "from buffer.groups.states import MOVES; MOVES['complete', 'drawn'] = ()"
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=1", change=change)
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(2))
        client.put(client.lease("a", 0, GroupPlan(1)).group_id, "a", finished())
        with pytest.raises(IllegalMove, match=r"draw: .*from complete"):
            client.draw(1, 0)
        client.put(client.lease("a", 0, GroupPlan(1)).group_id, "a", finished())
        stats = client.stats()
        assert (stats.train["complete"], stats.draws, stats.drawn_by) == (2, 0, {})
        assert stats.refused == {"IllegalMove": 1, "failed_transactions": 1}
