"""Attempts, reflections and retries, explored by the algorithms that reflect."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from r3l.algorithms.r3l import R3L
from r3l.errors import EngineFailed, EpisodeError
from r3l.records import GroupPlan, SlotResult
from r3l.rollout.exploration import Exploration
from r3l.rollout.group import explore_group
from tests.r3l.fakes import Corridor
from tests.r3l.rollout.fakes import (
    TASK,
    always_right,
    explore,
    explored,
    learner_of_advice,
    reflection,
)


def test_a_failed_attempt_is_corrected_from_its_pivot_without_the_guidance_in_the_record() -> None:
    policy = learner_of_advice()
    base, retry = (slot.trajectory for slot in explore(policy))
    assert base is not None and retry is not None
    assert (base.reward, retry.reward, retry.pivot, retry.of) == (0.0, 1.0, 1, 0)
    assert base.actions == ("a", "x", "c") and retry.actions == ("a", "b", "c")
    text = policy.chat.tokenizer.decode(retry.token_ids)
    assert "say b" not in text
    start = base.step_spans[1, 0]
    assert np.array_equal(base.token_ids[:start], retry.token_ids[:start])
    assert np.array_equal(base.logprobs[:start], retry.logprobs[:start])


def test_the_reflection_is_stored_once_and_the_retry_names_it_and_what_it_was_shown() -> None:
    policy = learner_of_advice()
    (base, retry), reflections = explored(policy)
    ((name, thought),) = reflections.items()
    assert retry.trajectory is not None and retry.trajectory.reflection == name == thought.name
    assert (thought.of, thought.outcome, thought.pivot) == (base.slot, "failure", 1)
    decode = policy.chat.tokenizer.decode
    assert decode(thought.token_ids[thought.response_mask]) == reflection() + "<|im_end|>"
    ids, mask = retry.trajectory.as_shown()
    assert decode(ids[mask]) == "b<|im_end|>c<|im_end|>" and "say b" in decode(ids)
    assert decode(ids[: mask.argmax()]) == policy.prompts[4]  # after three doors and a question


def test_a_recognised_success_is_not_retried() -> None:
    policy = learner_of_advice()
    policy.reply = lambda p: reflection("success", None) if "You review" in p else always_right(p)
    (_, retry), reflections = explored(policy)
    assert (retry.status, retry.cause, retry.of) == ("skipped", "not_triggered", 0)
    assert reflections["reflect-0"].outcome == "success"


@pytest.mark.parametrize(
    ("thought", "cause"),
    [
        ("no json here", "not_json"),
        (reflection(step=3), "bad_pivot"),
        (reflection("fine"), "bad_outcome"),
        ('{"trajectory_summary": "x"}', "missing_field"),
    ],
)
def test_an_unusable_reflection_is_stored_with_its_cause_and_skips_the_retry(
    thought: str, cause: str
) -> None:
    (_, retry), reflections = explored(learner_of_advice(thought))
    assert (retry.status, retry.cause) == ("skipped", "not_triggered")
    kept = reflections["reflect-0"]
    assert (kept.cause, kept.text) == (cause, thought)


def test_a_reflection_that_is_cut_off_is_named_truncated() -> None:
    _, reflections = explored(learner_of_advice(), "actor.max_reflection_tokens=20")
    assert reflections["reflect-0"].cause == "truncated"


def test_each_ablation_of_the_exploration_is_one_setting() -> None:
    no_reflect = explore(learner_of_advice(), "algorithm.reflect=false")
    assert [(r.status, r.of) for r in no_reflect] == [("done", -1), ("done", -1)]
    from_start = explore(learner_of_advice(), "algorithm.from_start=true")
    assert from_start[1].trajectory.pivot == 0  # type: ignore[union-attr]
    silent = learner_of_advice()
    unguided = explore(silent, "algorithm.guidance=false")[1].trajectory
    assert unguided is not None and unguided.reward == 0.0 and unguided.shown is None
    assert not any("say b" in p for p in silent.prompts if "You review" not in p)


@pytest.mark.parametrize("name", ["r3l", "reflect_grpo"])
def test_a_retry_reads_the_whole_report_or_the_advice_alone(name: str) -> None:
    read = {}
    for text in ("report", "advice"):
        policy = learner_of_advice()
        slots = explore(policy, f"algorithm={name}", f"algorithm.guidance_text={text}")
        retry = slots[-1].trajectory
        assert retry is not None and retry.reward == 1.0 and retry.shown is not None
        read[text] = policy.chat.tokenizer.decode(retry.as_shown()[0])
    assert json.dumps(json.loads(reflection())) in read["report"]
    assert "trajectory_summary" not in read["advice"] and "say b" in read["advice"]
    assert len(read["advice"]) < len(read["report"])


def test_only_failures_are_reflected_on_if_so_set() -> None:
    failing, right = learner_of_advice(), learner_of_advice()
    right.reply = always_right
    for policy, asked in ((failing, 1), (right, 0)):
        retry = explore(policy, "algorithm.reflect_on=failures")[1]
        assert sum("You review" in prompt for prompt in policy.prompts) == asked
        told = ("done", "") if asked else ("skipped", "not_reflected")
        assert (retry.status, retry.cause, retry.of) == (*told, 0)


def test_reflect_grpo_does_the_failures_of_the_first_half_again_from_the_start() -> None:
    slots = explore(learner_of_advice(), "algorithm=reflect_grpo")
    assert [slot.of for slot in slots] == [-1, -1, 0]
    retry = slots[2].trajectory
    assert retry is not None and (retry.pivot, retry.reward) == (0, 1.0)
    policy = learner_of_advice()
    policy.reply = always_right
    slots, reflections = explored(policy, "algorithm=reflect_grpo")
    assert (slots[2].status, slots[2].cause) == ("skipped", "not_reflected") and not reflections


def test_reflect_grpo_skips_a_failure_that_its_reflection_calls_a_success() -> None:
    policy = learner_of_advice(reflection("success", None))
    slots, reflections = explored(policy, "algorithm=reflect_grpo")
    assert (slots[2].status, slots[2].cause) == ("skipped", "not_triggered")
    assert reflections["reflect-0"].outcome == "success"


def test_critique_grpo_refines_each_failure_from_the_start_with_a_critique() -> None:
    slots, reflections = explored(learner_of_advice("just say b"), "algorithm=critique_grpo")
    assert [slot.of for slot in slots] == [-1, -1, 0, 1]
    refined = slots[2].trajectory
    assert refined is not None and (refined.pivot, refined.reward) == (0, 1.0)
    assert {thought.text for thought in reflections.values()} == {"just say b"}


@pytest.mark.parametrize(("shift", "pivot"), [(-5, 0), (-1, 0), (0, 1), (1, 2), (5, 2)])
def test_a_shifted_pivot_stays_within_the_attempt(shift: int, pivot: int) -> None:
    (_, retry), reflections = explored(learner_of_advice(), f"algorithm.pivot_shift={shift}")
    assert retry.trajectory is not None and retry.trajectory.pivot == pivot
    assert reflections["reflect-0"].pivot == 1  # as it was written


def test_a_refused_attempt_has_no_reflection_and_no_retry() -> None:
    async def emit(made: SlotResult) -> SlotResult:
        return SlotResult(0, "failed", cause="too_large") if made.slot == 0 else made

    (base, retry), reflections = explored(learner_of_advice(), emit=emit)
    assert (base.cause, retry.cause, retry.of) == ("too_large", "no_base", 0) and not reflections


def test_attempts_remember_their_temperature_and_a_retry_keeps_that_of_its_base() -> None:
    policy = learner_of_advice()
    heats = ("actor.temperature=0.7", "actor.reflect_temperature=0.2")
    slots, reflections = explored(policy, *heats)
    assert [slot.trajectory.temperature for slot in slots if slot.trajectory] == [0.7, 0.7]
    assert reflections["reflect-0"].temperature == 0.2
    asked = {(bool(p.json_schema), p.temperature) for p in policy.asked}
    assert asked == {(True, 0.2), (False, 0.7)}

    hotter = learner_of_advice()  # an actor of the resumed run, with other settings
    settings = ("actor.temperature=1.3", "algorithm.group_size=4")
    _, other, retry, _ = explore(hotter, *settings, results={0: slots[0]})
    assert other.trajectory is not None and retry.trajectory is not None
    assert (other.trajectory.temperature, retry.trajectory.temperature) == (1.3, 0.7)
    assert {p.temperature for p in hotter.asked if not p.json_schema} == {1.3, 0.7}


class Several(R3L):
    """Two attempts, of which the first may have three retries, and the second one."""

    name: str = "several"

    def retries(self, slots):  # type: ignore[no-untyped-def]
        return {0: [2, 4, 5], 1: [3]}

    def pivots_of(self, thought, base, count):  # type: ignore[no-untyped-def]
        return [0, 1, 2][:count]


def group_of_several(algorithm: R3L, policy: Any, **more: Any) -> Exploration:
    x = Exploration(TASK, policy, Corridor, GroupPlan(6), **more)
    asyncio.run(explore_group(algorithm.explore, x))
    return x


def test_an_attempt_may_have_several_retries_from_steps_of_their_own() -> None:
    x = group_of_several(Several(), learner_of_advice())
    found = [(one.slot, one.of, one.pivot, one.reflection) for one in x.attempts[2:]]
    assert found == [
        (2, 0, 0, "reflect-0"),
        (3, 1, 0, "reflect-1"),
        (4, 0, 1, "reflect-0"),
        (5, 0, 2, "reflect-0"),
    ]
    assert len(x.reflections) == 2


def test_all_retries_of_an_attempt_that_is_absent_or_not_retried_are_resolved() -> None:
    lost = SlotResult(0, "failed", cause="too_large")
    x = group_of_several(Several(), learner_of_advice(), results={0: lost})
    causes = {slot: (r.cause or r.status, r.of) for slot, r in x.results.items()}
    assert [causes[slot] for slot in (2, 4, 5)] == [("no_base", 0)] * 3
    assert causes[3] == ("done", 1)
    x = group_of_several(Several(), learner_of_advice("no json"))
    assert [x.results[slot].cause for slot in range(2, 6)] == ["not_triggered"] * 4


def test_a_failed_question_fails_all_retries_of_its_attempt_alone() -> None:
    policy = learner_of_advice()
    sample, asked = policy.sample, []

    async def refuse_first(token_ids: Any, params: Any) -> Any:
        if params.json_schema and not asked:
            asked.append(params)
            raise EngineFailed("no", cause="engine_refused")
        return await sample(token_ids, params)

    policy.sample = refuse_first  # type: ignore[method-assign]
    failures: list[EpisodeError] = []
    x = group_of_several(Several(), policy, on_failure=failures.append)
    causes = [x.results[slot].cause for slot in range(2, 6)]
    assert sorted(causes) in (["", "", "", "engine_refused"], ["", *["engine_refused"] * 3])
    assert {failure.cause for failure in failures} == {"engine_refused"}


def test_too_few_pivots_are_named() -> None:
    class Few(Several):
        def pivots_of(self, thought, base, count):  # type: ignore[no-untyped-def]
            return [1]

    failures: list[EpisodeError] = []
    group_of_several(Few(), learner_of_advice(), on_failure=failures.append)
    assert "pivots_of returned [1]; return 3 steps" in str(failures[0])
