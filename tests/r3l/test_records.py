"""Records refuse what they are not, and count what they hold."""

import numpy as np
import pytest
from msgspec.structs import replace

from r3l.errors import RecordError
from r3l.records import Extra, Group, GroupPlan, ReflectionRecord, SlotResult, Task

TASK = Task("t", "workshop", 0)


def test_a_trajectory_counts_its_steps_and_what_it_sampled(make_trajectory):
    base = make_trajectory([2, 3, 4])
    assert (base.num_steps, base.generated_tokens, base.oldest_version) == (3, 9, 0)
    later = replace(base, step_newest_versions=np.array([0, 2, 1], dtype=np.int32))
    assert (later.oldest_version, later.newest_version) == (0, 2)
    assert [later.versions_of(k) for k in (0, 1)] == ["v0", "v0 to v2"]
    retry = make_trajectory([2, 3, 4], role="distilled", parent=0, pivot=1)
    assert retry.generated_tokens == 7


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"role": "copy"}, "role"),
        ({"reward": float("nan")}, "reward"),
        ({"reward": float("inf")}, "reward"),
        ({"reward": -1e9 - 1}, "reward"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"step_newest_versions": np.zeros(1, dtype=np.int32)}, "step_newest_versions"),
        ({"step_newest_versions": np.array([0, -1], dtype=np.int32)}, "step_newest_versions"),
        ({"pivot": 2}, "pivot"),
        ({"pivot": -2}, "pivot"),
        ({"actions": ("one",)}, "step_spans"),
        ({"observations": ("one",)}, "step_spans"),
        ({"token_ids": np.zeros(10, dtype=np.int64)}, "token_ids"),
        ({"logprobs": np.zeros(9, dtype=np.float32)}, "logprobs"),
        ({"step_spans": np.array([[3, 5], [7, 11]], dtype=np.int32)}, "step_spans"),
        ({"step_spans": np.array([[3, 8], [7, 10]], dtype=np.int32)}, "step_spans"),
        ({"step_spans": np.array([[-1, 5], [7, 10]], dtype=np.int32)}, "step_spans"),
    ],
)
def test_a_malformed_trajectory_is_refused_by_field(make_trajectory, change, field):
    good = make_trajectory([2, 3])
    with pytest.raises(RecordError) as caught:
        replace(good, **change)
    assert caught.value.facts["field"] == field


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"reward_parts": {"a b": 1.0}}, "reward_parts"),
        ({"reward_parts": {"a": float("inf")}}, "reward_parts"),
        ({"reward_parts": {f"part{k}": 1.0 for k in range(17)}}, "reward_parts"),
        ({"step_rewards": np.zeros(3, dtype=np.float32)}, "step_rewards"),
        ({"step_rewards": np.zeros(2)}, "step_rewards"),
        ({"step_cut": np.zeros(1, dtype=np.bool_)}, "step_cut"),
        ({"step_cut": np.zeros(2, dtype=np.int32)}, "step_cut"),
        ({"start": 2}, "start"),
        ({"start": -1}, "start"),
    ],
)
def test_malformed_details_of_a_trajectory_are_refused_by_field(make_trajectory, extra, field):
    with pytest.raises(RecordError) as caught:
        replace(make_trajectory([2, 3]), extra=Extra(**extra))
    assert caught.value.facts["field"] == field


def test_responses_cut_off_are_counted_from_the_first_step_that_was_played(make_trajectory):
    cut = np.array([True, False, True])
    made = make_trajectory([2, 3, 4])
    assert [replace(made, extra=Extra(step_cut=cut, start=k)).cut_responses for k in range(3)] == [
        2,
        1,
        1,
    ]
    retry = make_trajectory([2, 3, 4], role="distilled", parent=0, pivot=1)
    assert replace(retry, extra=Extra(step_cut=cut)).cut_responses == 1
    assert made.cut_responses == 0


def test_a_slot_has_a_trajectory_exactly_when_done_and_a_cause_exactly_when_failed(
    make_trajectory,
):
    one = make_trajectory()
    assert SlotResult("base", 0, "done", trajectory=one).trajectory is one
    for bad in (
        {"status": "done"},
        {"status": "failed"},
        {"status": "not_triggered", "cause": "late"},
        {"status": "failed", "cause": "late", "trajectory": one},
    ):
        with pytest.raises(RecordError):
            SlotResult("base", 0, **bad)
    with pytest.raises(RecordError, match="slot"):
        SlotResult("distilled", 0, "done", trajectory=one)
    with pytest.raises(RecordError, match="negative"):
        SlotResult("base", -1, "not_triggered")


def test_a_group_orders_its_trajectories_and_knows_what_is_missing(make_trajectory):
    retry = make_trajectory([2, 3], role="distilled", parent=1, pivot=1, reward=1.0)
    results = (
        SlotResult(
            "distilled", 0, "done", trajectory=retry, reflection=ReflectionRecord("x", tokens=5)
        ),
        SlotResult("base", 1, "done", trajectory=make_trajectory([2, 3], slot=1, reward=0.5)),
        SlotResult("base", 0, "failed", cause="EngineFailed"),
    )
    group = Group("g", TASK, GroupPlan(2, 2), "filling", results)
    assert group.rewards.tolist() == [0.5, 1.0]
    assert group.unresolved == [("distilled", 1)]
    assert group.generated_tokens == 5 + 3 + 5
    assert group.oldest_version == 0
    assert Group("g", TASK, GroupPlan(1), "leased").oldest_version == -1
