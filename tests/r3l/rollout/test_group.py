"""The synthesis of one group: base attempts, reflections, retries, samples."""

from functools import partial

import numpy as np
import pytest

from r3l.records import SlotResult
from tests.r3l.fakes import Corridor
from tests.r3l.rollout.fakes import (
    Faulty,
    always_right,
    by_slot,
    explore,
    learner_of_advice,
    reflection,
)


def test_a_failed_attempt_is_corrected_from_its_pivot_without_the_guidance_in_the_record() -> None:
    policy = learner_of_advice()
    slots = by_slot(explore(policy))
    base, retry = slots["base", 0].trajectory, slots["distilled", 0].trajectory
    assert base is not None and retry is not None
    assert (base.reward, retry.reward, retry.pivot, retry.parent) == (0.0, 1.0, 1, 0)
    assert base.actions == ("a", "x", "c") and retry.actions == ("a", "b", "c")
    text = policy.chat.tokenizer.decode(retry.token_ids)
    assert "say b" not in text
    start = base.step_spans[1, 0]
    assert np.array_equal(base.token_ids[:start], retry.token_ids[:start])
    assert np.array_equal(base.logprobs[:start], retry.logprobs[:start])


def test_attempts_remember_their_temperature_and_a_retry_keeps_that_of_its_base() -> None:
    policy = learner_of_advice()
    heats = ("actor.temperature=0.7", "actor.reflect_temperature=0.2")
    slots = by_slot(explore(policy, *heats))
    base, retry = slots["base", 0].trajectory, slots["distilled", 0].trajectory
    assert base is not None and retry is not None
    assert (base.temperature, retry.temperature) == (0.7, 0.7)
    reflections = [p.temperature for p in policy.asked if p.json_schema]
    attempts = [p.temperature for p in policy.asked if not p.json_schema]
    assert set(reflections) == {0.2} and set(attempts) == {0.7}

    hotter = learner_of_advice()  # an actor of the resumed run, with other settings
    settings = ("actor.temperature=1.3", "algorithm.group_size=4")
    again = explore(hotter, *settings, accepted=[slots["base", 0]])
    taken = by_slot(again)
    other = taken["base", 1].trajectory
    retry = taken["distilled", 0].trajectory
    assert other is not None and retry is not None
    assert (other.temperature, retry.temperature) == (1.3, 0.7)
    assert {p.temperature for p in hotter.asked if not p.json_schema} == {1.3, 0.7}


def test_a_verified_correction_yields_a_reflect_and_a_guided_retry_sample() -> None:
    policy = learner_of_advice()
    reflect, retry = by_slot(explore(policy))["distilled", 0].aux
    assert (reflect.kind, retry.kind) == ("reflect", "retry")
    decode = policy.chat.tokenizer.decode
    assert decode(reflect.token_ids[reflect.response_mask]) == reflection() + "<|im_end|>"
    assert decode(retry.token_ids[retry.response_mask]) == "b<|im_end|>c<|im_end|>"
    assert "say b" in decode(retry.token_ids)


def test_a_recognised_success_keeps_its_base_and_yields_a_reflect_sample() -> None:
    policy = learner_of_advice(reflection("success", None))
    policy.reply = lambda p: (
        reflection("success", None)
        if "You review" in p
        else "abc"[int(p.rpartition("door ")[2][0])]
    )
    result = by_slot(explore(policy))["distilled", 0]
    assert result.status == "not_triggered" and [s.kind for s in result.aux] == ["reflect"]
    result = by_slot(explore(policy, "algorithm.praise=false"))["distilled", 0]
    assert result.status == "not_triggered" and result.aux == ()


@pytest.mark.parametrize(
    ("thought", "cause"),
    [
        ("no json here", "not_json"),
        (reflection(step=3), "bad_pivot"),
        (reflection("fine"), "bad_outcome"),
        ('{"trajectory_summary": "x"}', "missing_field"),
    ],
)
def test_an_unusable_reflection_is_counted_by_cause_and_skips_the_retry(
    thought: str, cause: str
) -> None:
    result = by_slot(explore(learner_of_advice(thought)))["distilled", 0]
    assert result.status == "not_triggered" and result.reflection is not None
    assert result.reflection.cause == cause and result.reflection.text == thought


def test_a_reflection_that_is_cut_off_is_named_truncated() -> None:
    policy = learner_of_advice()
    result = by_slot(explore(policy, "actor.max_reflection_tokens=20"))["distilled", 0]
    assert result.reflection is not None and result.reflection.cause == "truncated"


def test_each_ablation_of_the_rollout_is_one_setting() -> None:
    no_reflect = explore(learner_of_advice(), "algorithm.reflect=false")
    assert [(r.role, r.slot) for r in no_reflect] == [("base", 0), ("base", 1)]
    from_start = by_slot(explore(learner_of_advice(), "algorithm.from_start=true"))
    assert from_start["distilled", 0].trajectory.pivot == 0  # type: ignore[union-attr]
    silent = learner_of_advice()
    unguided = by_slot(explore(silent, "algorithm.guidance=false"))["distilled", 0].trajectory
    assert unguided is not None and unguided.reward == 0.0
    assert not any("say b" in p for p in silent.prompts if "You review" not in p)


def test_only_failures_are_reflected_on_if_so_set() -> None:
    failing, right = learner_of_advice(), learner_of_advice()
    right.reply = always_right
    for policy, asked in ((failing, 1), (right, 0)):
        results = explore(policy, "algorithm.reflect_on=failures")
        assert sum("You review" in prompt for prompt in policy.prompts) == asked
        assert by_slot(results)["distilled", 0].status == ("done" if asked else "not_triggered")


def test_reflect_grpo_does_the_failures_of_the_first_half_again_from_the_start() -> None:
    slots = by_slot(explore(learner_of_advice(), "algorithm=reflect_grpo"))
    assert sorted(slots) == [("base", 0), ("base", 1), ("distilled", 0)]
    retry = slots["distilled", 0].trajectory
    assert retry is not None and (retry.pivot, retry.reward) == (0, 1.0)
    policy = learner_of_advice()
    policy.reply = always_right
    slots = by_slot(explore(policy, "algorithm=reflect_grpo"))
    assert slots["distilled", 0].status == "not_triggered"
    assert slots["distilled", 0].reflection is None  # a success is not reflected on


def test_reflect_grpo_skips_a_failure_that_its_reflection_calls_a_success() -> None:
    policy = learner_of_advice(reflection("success", None))
    result = by_slot(explore(policy, "algorithm=reflect_grpo"))["distilled", 0]
    assert result.status == "not_triggered" and not result.aux
    assert result.reflection is not None and result.reflection.outcome == "success"


@pytest.mark.parametrize(("shift", "pivot"), [(-5, 0), (-1, 0), (0, 1), (1, 2), (5, 2)])
def test_a_shifted_pivot_stays_within_the_attempt(shift: int, pivot: int) -> None:
    slots = by_slot(explore(learner_of_advice(), f"algorithm.pivot_shift={shift}"))
    result = slots["distilled", 0]
    assert result.trajectory is not None and result.trajectory.pivot == pivot
    assert result.reflection is not None and result.reflection.pivot == 1  # as it was written


def test_a_refused_attempt_has_no_reflection_and_no_retry() -> None:
    async def emit(result: SlotResult) -> SlotResult:
        if (result.role, result.slot) != ("base", 0):
            return result
        return SlotResult("base", 0, "failed", cause="too_large")

    slots = by_slot(explore(learner_of_advice(), emit=emit))
    assert slots["base", 0].cause == "too_large" and slots["distilled", 0].cause == "no_base"


def test_accepted_results_are_not_played_again() -> None:
    first = explore(learner_of_advice())
    base = by_slot(first)["base", 0]
    policy, emitted = learner_of_advice(), []

    async def emit(result: SlotResult) -> SlotResult:
        emitted.append((result.role, result.slot))
        return result

    again = explore(policy, accepted=[base], emit=emit)
    assert ("base", 0) not in emitted and ("distilled", 0) in emitted
    retry = by_slot(again)["distilled", 0].trajectory
    assert retry is not None and retry.reward == 1.0


def test_seeds_are_fixed_by_the_group_and_differ_between_its_parts() -> None:
    one, two, other = learner_of_advice(), learner_of_advice(), learner_of_advice()
    explore(one, seed=1)
    explore(two, seed=1)
    explore(other, seed=2)
    seeds = sorted(p.seed for p in one.asked if p.seed is not None)
    assert seeds == sorted(p.seed for p in two.asked if p.seed is not None)
    assert len(set(seeds)) == len(one.asked)
    assert not set(seeds) & {p.seed for p in other.asked}


def test_a_slot_fails_if_its_environment_cannot_start_but_not_if_it_cannot_close() -> None:
    def make() -> Corridor:
        raise OSError("no display")

    slots = by_slot(explore(learner_of_advice(), make_env=make))
    assert slots["base", 0].cause == "environment_OSError"
    make = partial(Faulty, "close", OSError("still busy"))
    assert by_slot(explore(learner_of_advice(), make_env=make))["base", 0].status == "done"
