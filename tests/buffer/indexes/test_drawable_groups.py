"""What draws ask of the groups that may be drawn is what a scan of all rows gives."""

from hypothesis import given
from hypothesis import strategies as st

from buffer.indexes.drawable_groups import DrawableGroups, numbers_of
from buffer.storage.stored_rows import GroupRow
from r3l.records import GroupPlan

REUSE = 3
STATES = st.sampled_from(["filling", "complete", "drawn", "trained", "expired"])


@st.composite
def rows(draw):
    state, source = draw(STATES), draw(st.sampled_from(["", "people"]))
    steps = tuple(sorted(draw(st.sets(st.integers(1, 6), max_size=REUSE))))
    return GroupRow(
        f"g{draw(st.integers(1, 12)):010d}", "t", 0, GroupPlan(1),
        "trained" if source else state,
        oldest_version=draw(st.integers(0, 5)),
        steps=steps if state == "trained" else (),
        source=source,
        rewards=tuple(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0]), max_size=2))),
        priority=draw(st.sampled_from([None, 0.0, 2.5])),
    )  # fmt: skip


CHANGES = st.one_of(
    rows(),
    st.tuples(st.just("rest"), st.integers(-3, 7)),
    st.tuples(st.just("admit"), st.integers(1, 12)),
    st.tuples(st.just("forget"), st.integers(1, 12)),
)


def ids(found):
    return [row.group_id for row in found]


@given(st.lists(CHANGES, max_size=40), st.integers(0, 6), st.integers(-3, 7))
def test_every_question_is_answered_as_by_a_scan(changes, version, since):
    groups = DrawableGroups()
    complete, again, admitted = dict[str, GroupRow](), dict[str, GroupRow](), set[str]()
    for change in changes:
        if isinstance(change, GroupRow):
            name, replayable = change.group_id, False
            complete.pop(name, None)
            again.pop(name, None)
            if change.state == "complete":
                complete[name] = change
            elif replayable := change.state == "trained" and len(change.steps) < REUSE:
                again[name] = change
            if change.closed and not replayable:
                admitted.discard(name)
            groups.put(change, replayable=replayable)
            continue
        what, number = change
        name = f"g{number:010d}"
        if what == "rest":
            groups.rest_until(number)
        elif what == "admit":
            groups.admit(name)
            admitted.add(name)
        else:
            groups.forget(name)
            again.pop(name, None)
            admitted.discard(name)
    groups.rest_until(since)
    rested = [row for row in again.values() if not row.steps or row.steps[-1] <= since]
    ready = sorted([*complete.values(), *rested], key=lambda row: row.group_id)
    assert list(groups.ready) == ready and len(groups.ready) == len(ready)
    assert groups.ready[:3] == ready[:3] and groups.ready[1:9:2] == ready[1:9:2]
    assert [groups.ready[at] for at in range(-len(ready), len(ready))] == ready * 2
    assert ids(groups.fresh) == sorted(complete)
    assert ids(groups.rested) == ids(sorted(rested, key=lambda row: (row.step, row.group_id)))
    for found in (groups.ready, groups.fresh, groups.rested):
        slow = [(r.contrast if r.priority is None else r.priority, r.uses) for r in found]
        assert numbers_of(found).tolist() == numbers_of(list(found)).tolist()
        assert numbers_of(found).tolist() == [list(map(float, pair)) for pair in slow]
    assert groups.resting == len(again) - len(rested)
    for number in range(13):
        name = f"g{number:010d}"
        row = complete.get(name) or next((r for r in rested if r.group_id == name), None)
        assert groups.find(name) == row
    old = [row for row in complete.values() if row.oldest_version < version]
    assert set(ids(groups.complete_older_than(version))) == set(ids(old))
    old = [row for row in again.values() if row.oldest_version < version and not row.source]
    assert set(ids(groups.replays_older_than(version))) == set(ids(old))
    assert groups.admitted == admitted
    assert ids(groups.unasked()) == sorted((complete.keys() | again.keys()) - admitted)
