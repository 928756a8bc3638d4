"""Counts: each follows from rows, and what was made is what is there or was evicted."""

from collections import Counter
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from buffer.storage import counts
from buffer.storage.stored_rows import GroupRow
from r3l.records import GROUP_STATES, GroupPlan, Purpose

NEW = GroupRow("g0000000001", "t", 0, GroupPlan(4), "leased")
rows = st.builds(
    lambda state, purpose, nbytes: NEW.with_changes(
        state=state, purpose=purpose, tag="x", nbytes=nbytes
    ),
    st.sampled_from(GROUP_STATES),
    st.sampled_from(get_args(Purpose)),
    st.integers(0, 100),
)


@given(st.lists(st.lists(rows, min_size=1, max_size=5), max_size=5), st.data())
def test_groups_made_are_those_in_the_store_and_the_evicted_ones(lives, data):
    total = Counter()
    for life in lives:
        before = None
        for row in life:
            total.update(counts.added(before, row))
            before = row
        if data.draw(st.booleans()):
            total.update(counts.evicted(before))
    gone = sum(counts.under(total, "evicted").values())
    assert total["made"] == len(lives) == sum(counts.under(total, "group").values()) + gone
    assert total["bytes"] + total["evicted_bytes"] == sum(life[-1].nbytes for life in lives)
    assert all(number >= 0 for number in total.values())


def test_a_finished_evaluation_is_counted_once_and_stays_counted_after_its_eviction():
    held = NEW.with_changes(purpose="eval", tag="step-3")
    done = held.with_changes(state="complete")
    total, shown = Counter(), []
    for change in (
        counts.added(None, held),
        counts.added(held, done),
        counts.added(done, done.with_changes(nbytes=5)),
        counts.evicted(done.with_changes(nbytes=5)),
    ):
        total.update(change)
        shown.append(+counts.under(total, "eval_done"))
    assert shown == [{}, {"step-3": 1}, {"step-3": 1}, {"step-3": 1}]


def test_drops_of_a_group_are_its_failures_and_all_of_it_if_it_expired():
    slots = {"resolved_slots": (0, 1, 2, 3), "of": (-1, -1, 0, 0), "played": (0, 2, 3)}
    failures, rewards = ("base/engine",), (0.0, 0.5, 1.0)
    row = NEW.with_changes(**slots, rewards=rewards, failures=failures, state="complete")
    assert counts.lasting(row) == {"drop/base/engine": 1}
    expired = counts.lasting(row.with_changes(state="expired", cause="stale"))
    assert counts.under(expired, "drop/group") == {"stale": 1}
    assert counts.under(expired, "replaced") == {}
    refused = counts.lasting(row.with_changes(state="expired", cause="flat", replaced=True))
    assert counts.under(refused, "replaced") == counts.under(refused, "drop/group") == {"flat": 1}
    assert counts.slot_drops(expired) == {"base/engine": 1, "base/stale": 1, "distilled/stale": 2}
