"""The one view of an attempt."""

import numpy as np
import pytest
from msgspec import convert, to_builtins
from msgspec.structs import replace

from r3l.records import Group, GroupPlan, Origin, SlotResult, Task, done
from r3l.views.attempt_view import AttemptView, _calls, conversation, pairs, text, view, views
from r3l.views.tape import TapedCall
from tests.buffer.fakes import thought
from tests.buffer.viewer.stores import Made, agent_results, attempt, reflections, results

MADE = Made(steps=4)


def group(found, thoughts=(), slots=4):
    plan, task = GroupPlan(slots), Task("t", "doors", 1)
    return Group("g1", task, plan, "trained", tuple(found), tuple(thoughts))


def seen(found):
    """The pairs as (slot, whether it holds an attempt, name of the reflection, slot of the retry,
    gain)."""
    return [
        (
            pair.slot,
            pair.base is not None and pair.base.reward is not None,
            pair.reflection and pair.reflection.name,
            pair.retry and pair.retry.slot,
            pair.gain,
        )
        for pair in pairs(found)
    ]


def test_a_slot_without_an_attempt_has_neither_steps_nor_reward():
    failed = view(SlotResult(1, "failed", cause="env"))
    assert (failed.steps, failed.reward, failed.length, failed.cause) == ((), None, None, "env")
    assert (failed.title, failed.role, failed.base, failed.of) == ("attempt 1", "base", 1, -1)
    skipped = view(SlotResult(5, "skipped", cause="not_triggered", of=2))
    assert (skipped.title, skipped.cause) == ("attempt 5, retry of 2", "not_triggered")
    assert (skipped.role, skipped.base, skipped.of) == ("distilled", 2, 2)


def test_the_steps_that_were_sampled_for_an_attempt_are_its_own(make_trajectory):
    retry = make_trajectory([2, 3, 4], slot=3, of=0, pivot=1)
    retry = replace(retry, step_newest_versions=np.array([0, 2, 0], np.int32))
    found = view(done(retry))
    assert [step.own for step in found.steps] == [False, True, True]
    assert [step.length for step in found.steps] == [2, 3, 4]
    assert [step.versions for step in found.steps] == ["v0", "v0 to v2", "v0"]
    assert (found.generated, found.title) == (7, "attempt 3, retry of 0 from step 1")


def test_an_attempt_that_began_in_another_group_names_its_step_and_an_imported_one_its_source():
    begun = attempt(1, MADE, pivot=2, origin=Origin("g0", 7, 2), source="demonstrations")
    found = view(done(begun))
    assert [step.own for step in found.steps] == [False, False, True, True]
    assert found.title == "attempt 1 from step 2 of attempt 7 in group g0"
    assert (found.origin, found.source, found.role) == (begun.origin, "demonstrations", "base")
    assert "   imported from demonstrations" in text(group([done(begun)])).splitlines()


def test_an_attempt_with_two_retries_comes_twice_each_with_the_reflection_that_advised_it():
    retries = [
        done(attempt(slot, MADE, reward=0.5 * slot, pivot=slot, of=0, reflection=name))
        for slot, name in ((1, "first"), (2, "second"))
    ]
    thoughts = [thought("second"), thought("first")]
    assert seen(group([*retries, done(attempt(0, MADE))], thoughts)) == [
        (0, True, "first", 1, 0.5),
        (0, True, "second", 2, 1.0),
        (3, False, None, None, None),  # an open slot
    ]


def test_a_retry_that_was_not_played_has_the_reflection_that_no_other_retry_names():
    skipped = [SlotResult(slot, "skipped", cause="not_triggered", of=0) for slot in (1, 3)]
    retry = done(attempt(2, MADE, reward=1.0, pivot=1, of=0, reflection="b"))
    thoughts = [thought(name) for name in "abc"]
    assert seen(group([done(attempt(0, MADE)), *skipped, retry], thoughts)) == [
        (0, True, "a", 1, None),
        (0, True, "b", 2, 1.0),
        (0, True, "c", 3, None),
    ]
    assert [one.reflection and one.reflection.name for one in views(group(skipped, thoughts))] == [
        "a",
        "b",
    ]


def test_a_reflection_behind_no_retry_is_shown_with_its_attempt_or_alone():
    thoughts = [thought("praise", of=0), thought("group", of=-1)]
    found = group([done(attempt(0, MADE))], thoughts, slots=1)
    assert seen(found) == [(-1, False, "group", None, None), (0, True, "praise", None, None)]
    titles = [line for line in text(found).splitlines() if line.startswith("──")]
    assert titles == [
        "── reflection group",
        "── attempt 0: done",
        "── reflection praise on attempt 0",
    ]


def test_a_retry_is_shown_without_its_attempt_and_a_retry_of_a_retry_with_the_first_one():
    lost = done(attempt(1, MADE, pivot=1, of=0))
    assert seen(group([lost, SlotResult(0, "failed", cause="env")], slots=2)) == [
        (0, False, None, 1, None)
    ]
    assert seen(group([lost], slots=2)) == [(0, False, None, 1, None)]
    chain = [done(attempt(0, MADE)), done(attempt(2, MADE, reward=0.5, pivot=1, of=0))]
    chain.append(done(attempt(1, MADE, reward=1.0, pivot=2, of=2)))
    assert seen(group(chain, slots=3)) == [(0, True, None, 2, 0.5), (2, True, None, 1, 0.5)]
    titles = [line[3:] for line in text(group(chain)).splitlines() if line.startswith("──")]
    assert [title.partition(":")[0] for title in titles] == [
        "attempt 0",
        "attempt 2, retry of 0 from step 1",
        "attempt 1, retry of 2 from step 2",
    ]


def test_a_view_that_an_earlier_version_wrote_is_read_without_its_unknown_fields():
    written = to_builtins(view(done(attempt(0, MADE))))
    known = {name: written[name] for name in ("role", "slot", "status", "cause", "base", "reward")}
    read = convert(known | {"aux": ["retry"], "colour": 1}, AttemptView)
    assert (read.reward, read.of, read.reflection) == (0.0, -1, None)


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
    found = view(SlotResult(0, "skipped", of=1), thought(text=said, of=1, tokens=7)).reflection
    assert (found.fields, found.text) == (fields, said)
    assert (found.name, found.of, found.tokens) == ("reflect-0", 1, 7)


def test_a_group_as_text_has_every_retry_under_its_attempt():
    told = text(group(results(Made()), reflections()))
    titles = [line for line in told.splitlines() if line.startswith("──")]
    assert titles == [
        "── attempt 0: done",
        "── attempt 2, retry of 0 from step 1: done",
        "── attempt 1: done",
        "── attempt 3, retry of 1 from step 1: failed replay_diverged",
    ]
    assert "   root_cause_analysis: step 1 spoils" in told
    assert "   reward 1.0, 3 steps, 8 tokens, versions 0 to 0, terminated" in told
    assert "   [system] be brief\n   [user] a door\n   [assistant] act 0\n" in told
    assert "group g2: leased" in text(Group("g2", Task("t", "e", 0), GroupPlan(2), "leased"))


def test_nothing_is_shown_after_the_last_response_if_the_environment_said_nothing():
    told, said = view(done(attempt(0, MADE))), "[user] a door"
    assert list(conversation(told))[-2:] == ["[assistant] act 3", said]
    assert list(conversation(replace(told, last="")))[-1] == "[assistant] act 3"


def test_the_calls_of_an_agent_are_a_tree_in_a_groups_text():
    told = text(group(agent_results(Made())))
    lines = [line.strip() for line in told.partition(", retry of")[0].splitlines()]
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


def test_a_call_says_why_it_is_not_trained_and_which_free_reply_did_not_fit():
    reply = {"role": "assistant", "content": "{}"}
    shaped = TapedCall("chat", "d", -1, (), reply, trained=False, untrained="grammar", missed="no")
    lines = list(_calls([shaped, TapedCall("chat", "d", -1, (), reply, trained=False)]))
    assert lines[0].endswith(", not trained: a grammar shaped it")
    assert lines[1:3] == ["[assistant] {}", "[a free reply that did not fit] no"]
    assert lines[3].endswith(", not trained")
