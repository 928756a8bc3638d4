"""Slots, reflections and groups refuse what they are not, and know what is missing."""

import numpy as np
import pytest

from r3l.errors import RecordError
from r3l.records import (
    AttemptKey,
    Group,
    GroupPlan,
    ReflectionRecord,
    SlotResult,
    Task,
    check_reflection_name,
    done,
)

TASK = Task("t", "workshop", 0)


def reflection(name: str = "reflect-0", tokens: int = 5, start: int = 2) -> ReflectionRecord:
    return ReflectionRecord(
        name, "x", np.arange(tokens, dtype=np.int32), np.zeros(tokens, np.float32), start
    )


def test_a_reflection_tells_what_was_asked_from_what_was_sampled():
    made = reflection(tokens=5, start=2)
    assert made.tokens == 3 and made.response_mask.tolist() == [False, False, True, True, True]
    for wrong in (-1, 6):
        with pytest.raises(RecordError, match="start"):
            reflection(start=wrong)
    with pytest.raises(RecordError, match="logprobs"):
        ReflectionRecord("r", "x", np.zeros(2, np.int32), np.zeros(3, np.float32))


@pytest.mark.parametrize("name", ["", "x" * 81, "a\nb", "\ud800"])
def test_a_reflection_has_a_short_printable_name(name):
    check_reflection_name("why did it fail?")
    with pytest.raises(RecordError, match="printable characters"):
        check_reflection_name(name)


def test_a_slot_has_a_trajectory_exactly_when_done_and_a_cause_when_failed(make_trajectory):
    one = make_trajectory()
    assert done(one) == SlotResult(0, "done", trajectory=one)
    assert SlotResult(0, "skipped").cause == "" and SlotResult(0, "skipped", "late").cause == "late"
    for bad in (
        {"status": "done"},
        {"status": "done", "cause": "late", "trajectory": one},
        {"status": "failed"},
        {"status": "skipped", "trajectory": one},
        {"status": "failed", "cause": "late", "trajectory": one},
        {"status": "failed", "cause": "late\n"},
    ):
        with pytest.raises(RecordError):
            SlotResult(0, **bad)
    with pytest.raises(RecordError, match="negative"):
        SlotResult(-1, "skipped")


def test_a_slot_holds_the_attempt_of_this_slot_and_of_what_it_retries(make_trajectory):
    retry = make_trajectory(slot=3, of=1, pivot=0)
    assert (done(retry).slot, done(retry).of, done(retry).role) == (3, 1, "distilled")
    for slot, of in ((2, 1), (3, -1), (3, 0)):
        with pytest.raises(RecordError, match="holds the attempt of slot 3 of 1"):
            SlotResult(slot, "done", trajectory=retry, of=of)
    assert SlotResult(3, "skipped", "not_triggered", of=1).role == "distilled"


def test_a_group_orders_its_trajectories_and_knows_what_is_missing(make_trajectory):
    results = (
        done(make_trajectory([2, 3], slot=2, of=1, pivot=1, reward=1.0)),
        done(make_trajectory([2, 3], slot=1, reward=0.5)),
        SlotResult(0, "failed", cause="EngineFailed"),
    )
    group = Group("g", TASK, GroupPlan(4), "filling", results, (reflection(tokens=7),))
    assert group.rewards.tolist() == [0.5, 1.0]
    assert group.unresolved == [3]
    assert group.generated_tokens == 5 + 3 + 5
    assert group.oldest_version == 0
    assert Group("g", TASK, GroupPlan(1), "leased").oldest_version == -1


def test_the_pairs_of_a_group_follow_what_each_attempt_retries(make_trajectory):
    """A retry of a retry, several retries of one attempt, and one whose attempt failed."""
    made = [
        make_trajectory(slot=slot, of=of, pivot=0 if of >= 0 else -1)
        for slot, of in ((0, -1), (2, 0), (3, 0), (4, 2), (5, 1))
    ]
    failed = SlotResult(1, "failed", cause="agent_exit")
    group = Group("g", TASK, GroupPlan(6), "complete", (failed, *map(done, made)))
    assert [(a.slot, b.slot) for a, b in group.retries] == [(0, 2), (0, 3), (2, 4)]


def test_a_plan_names_stored_attempts_that_are_handed_out():
    plan = GroupPlan(2, "again", (AttemptKey("g1", 3),))
    assert plan.handed == (AttemptKey("g1", 3),) and GroupPlan(2).handed == ()
