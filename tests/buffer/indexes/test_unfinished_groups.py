"""What leases ask of unfinished groups is what a scan of all rows gives."""

from hypothesis import given
from hypothesis import strategies as st

from buffer.indexes.unfinished_groups import UnfinishedGroups
from buffer.storage.stored_rows import GroupRow
from r3l.records import GroupPlan

NUMBERS = st.integers(1, 12)
STATES = st.sampled_from(["leased", "filling", "complete", "expired"])


@st.composite
def rows(draw):
    return GroupRow(
        f"g{draw(NUMBERS):010d}", "t", 0, GroupPlan(1), draw(STATES), "eval",
        tag=draw(st.sampled_from(["x", "y"])),
        actor=draw(st.sampled_from(["", "a"])),
        deadline=draw(st.integers(0, 5)) / 2,
        lease_expired=draw(st.booleans()),
        oldest_version=draw(st.integers(-1, 4)),
    )  # fmt: skip


@given(st.lists(rows(), max_size=40), st.integers(0, 6))
def test_every_question_is_answered_as_by_a_scan(changes, limit):
    groups, slow, moment = UnfinishedGroups(), dict[str, GroupRow](), limit / 2
    for row in changes:
        groups.put(row)
        slow.pop(row.group_id, None)
        if row.unfinished:
            slow[row.group_id] = row
    held = [row for row in slow.values() if row.has_holder]
    unheld = sorted((r for r in slow.values() if not r.has_holder), key=lambda r: r.group_id)
    assert len(groups) == len(slow) and list(groups) == list(slow.values())
    assert groups.unheld == len(unheld)
    assert groups.first_unheld() == (unheld[0] if unheld else None)
    first = {row.tag: row for row in reversed(unheld)}
    assert dict(groups.unheld_tags()) == first
    due = groups.due_before(moment)
    assert [row.deadline for row in due] == sorted(row.deadline for row in due)
    assert {row.group_id for row in due} == {r.group_id for r in held if r.deadline < moment}
    assert groups.due_from(moment) == sum(row.deadline >= moment for row in held)
    old = {row.group_id for row in unheld if 0 <= row.oldest_version < limit}
    assert {row.group_id for row in groups.unheld_older_than(limit)} == old
