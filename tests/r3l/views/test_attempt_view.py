"""The one view of an attempt."""

import numpy as np
import pytest
from msgspec.structs import replace

from r3l.records import Group, GroupPlan, ReflectionRecord, SlotResult, Task
from r3l.views.attempt_view import pairs, text, view
from tests.buffer.viewer.stores import Made, agent_results, attempt, results

MADE = Made(steps=4)


def group(found, plan=None):
    return Group("g1", Task("t", "doors", 1), plan or GroupPlan(2, 2), "trained", tuple(found))


def test_a_slot_without_an_attempt_has_neither_steps_nor_reward():
    failed = view(SlotResult("base", 1, "failed", cause="env"))
    assert (failed.steps, failed.reward, failed.length, failed.cause) == ((), None, None, "env")
    assert failed.title == "base 1"


def test_the_steps_that_were_sampled_for_an_attempt_are_its_own(make_trajectory):
    retry = make_trajectory([2, 3, 4], role="distilled", parent=0, pivot=1)
    retry = replace(retry, step_newest_versions=np.array([0, 2, 0], np.int32))
    found = view(SlotResult("distilled", 0, "done", trajectory=retry))
    assert [step.own for step in found.steps] == [False, True, True]
    assert [step.length for step in found.steps] == [2, 3, 4]
    assert [step.versions for step in found.steps] == ["v0", "v0 to v2", "v0"]
    assert (found.generated, found.title) == (7, "retry of base 0 from step 1")


def test_a_base_with_two_retries_comes_twice_and_an_open_slot_is_none():
    retries = [
        replace(attempt("distilled", slot, MADE, reward=1.0, pivot=1), parent=0) for slot in (0, 1)
    ]
    found = pairs(
        group(
            [
                SlotResult("base", 0, "done", trajectory=attempt("base", 0, MADE)),
                *(SlotResult("distilled", r.slot, "done", trajectory=r) for r in retries),
            ]
        )
    )
    assert [(p.slot, p.retry and p.retry.slot, p.gain) for p in found] == [
        (0, 0, 1.0), (0, 1, 1.0), (1, None, None),
    ]  # fmt: skip
    assert found[2].base is None


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ('{"improvement_suggestion": "look first", "step": 3}',
         {"improvement_suggestion": "look first", "step": "3"}),
        ('{"improvement_suggestion": null}', {}),
        ('{"improvement_suggestion": "look\nfirst"}', {"improvement_suggestion": "look\nfirst"}),
        ("I was wrong.", {}),
        ("[1]", {}),
    ],
)  # fmt: skip
def test_a_reflection_has_its_fields_and_its_text(said, fields):
    slot = SlotResult("distilled", 0, "not_triggered", reflection=ReflectionRecord(said))
    found = view(slot).reflection
    assert (found.fields, found.text) == (fields, said)


def test_a_group_as_text_has_every_slot_under_its_base():
    told = text(group(results(Made())))
    titles = [line for line in told.splitlines() if line.startswith("──")]
    assert titles == [
        "── base 0: done",
        "── retry of base 0 from step 1: done",
        "── base 1: done",
        "── retry of base 1 from step 1: failed replay_diverged",
    ]
    assert "   root_cause_analysis: step 1 spoils" in told
    assert "   reward 1.0, 3 steps, 8 tokens, versions 0 to 0, terminated" in told
    assert "   [system] be brief\n   [user] a door\n   [assistant] act 0\n" in told
    assert "group g2: leased" in text(Group("g2", Task("t", "e", 0), GroupPlan(2), "leased"))


def test_the_calls_of_an_agent_are_a_tree_in_a_groups_text():
    told = text(group(agent_results(Made())))
    lines = [line.strip() for line in told.partition("── retry")[0].splitlines()]
    start = lines.index("── call 0, chat: 4 tokens, 0.25 s")
    assert lines[start + 1 : start + 7] == [
        "[user] a door",
        '[assistant] add({"a": 1})',
        "── call 1, chat: 4 tokens, 0.00 s",
        "[tool] 2",
        "[assistant] it is 2",
        "── call 2, chat: 4 tokens, 0.00 s",
    ]
    assert (
        "       ── call 2" in told and "── call 3, messages: 3 tokens, 0.00 s, not trained" in told
    )
