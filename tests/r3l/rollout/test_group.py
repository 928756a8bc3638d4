"""One explore group, with a scripted policy and world (ALGORITHM §2)."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from r3l.config import load
from r3l.errors import ReplayDiverged, UserError
from r3l.records import SlotResult, Task
from r3l.rollout.group import explore_group
from tests.r3l.fakes import Corridor, ScriptedPolicy

TASK = Task("corridor/0", "corridor", seed=7)


def reflection(outcome: str = "failure", step: int | None = 1, advice: str = "say b") -> str:
    return json.dumps(
        {
            "trajectory_summary": "tried",
            "root_cause_analysis": "wrong",
            "trajectory_outcome": outcome,
            "improvement_suggestion": advice,
            "retry_from_step": step,
        }
    )


def learner_of_advice(thought: str = reflection()) -> ScriptedPolicy:
    """Answers "x" at door 1 unless advised; reflects with `thought`."""

    def reply(prompt: str) -> str:
        if "You review one attempt" in prompt:
            return thought
        door = int(prompt.rpartition("door ")[2].split()[0])
        right = "abc"[door]
        return right if door != 1 or "say b" in prompt else "x"

    return ScriptedPolicy(reply)


def explore(policy: ScriptedPolicy, *overrides: str, **more: Any) -> list[SlotResult]:
    config = load(None, ["algorithm.group_size=2", *overrides])
    make = more.pop("make_env", Corridor)
    return asyncio.run(explore_group(TASK, policy, make, config, **more))


def by_slot(results: list[SlotResult]) -> dict[tuple[str, int], SlotResult]:
    return {(r.role, r.slot): r for r in results}


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


def test_the_distilled_tokens_are_what_an_unguided_conversation_would_hold() -> None:
    policy = learner_of_advice()
    retry = by_slot(explore(policy))["distilled", 0].trajectory
    assert retry is not None
    chat = policy.chat
    expected = list(chat.open("Answer.", retry.observations[0]))
    for k, action in enumerate(retry.actions):
        expected += [*chat.prompt_ids, *chat.tokenizer.encode(action), chat.end_id]
        if k + 1 < retry.num_steps:
            expected += chat.turn("user", retry.observations[k + 1])
    assert retry.token_ids.tolist() == expected


def test_guidance_follows_the_untouched_prefix_as_a_system_message() -> None:
    policy = learner_of_advice()
    base = by_slot(explore(policy))["base", 0].trajectory
    assert base is not None
    guided = next(p for p in policy.prompts if "say b" in p and "You review" not in p)
    prefix_end = int(base.step_spans[1, 0]) - len(policy.chat.prompt_ids)
    prefix = policy.chat.tokenizer.decode(base.token_ids[:prefix_end].tolist())
    assert guided.startswith(prefix + "<|im_start|>system\n")


def test_a_pivot_of_zero_puts_the_guidance_into_the_system_prompt() -> None:
    policy = learner_of_advice(reflection(step=0))
    retry = by_slot(explore(policy))["distilled", 0].trajectory
    assert retry is not None and retry.pivot == 0 and retry.actions == ("a", "b", "c")
    guided = next(p for p in policy.prompts if "say b" in p and "You review" not in p)
    assert guided.startswith("<|im_start|>system\nAnswer.\nAdvice")
    assert guided.count("<|im_start|>system") == 1


def test_a_verified_correction_yields_a_reflect_and_a_guided_retry_sample() -> None:
    policy = learner_of_advice()
    reflect, retry = by_slot(explore(policy))["distilled", 0].aux
    assert (reflect.kind, retry.kind) == ("reflect", "retry")
    decode = policy.chat.tokenizer.decode
    assert decode(reflect.token_ids[reflect.response_mask]) == reflection() + "<|im_end|>"
    assert decode(retry.token_ids[retry.response_mask]) == "b<|im_end|>c<|im_end|>"
    assert "say b" in decode(retry.token_ids)


def test_a_success_that_is_recognised_keeps_its_base_and_yields_a_reflect_sample() -> None:
    policy = learner_of_advice(reflection("success", None))
    policy.reply = lambda p: (
        reflection("success", None)
        if "You review" in p
        else "abc"[int(p.rpartition("door ")[2][0])]
    )
    result = by_slot(explore(policy))["distilled", 0]
    assert result.status == "not_triggered" and [s.kind for s in result.aux] == ["reflect"]


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


def test_ablations_are_one_setting_each() -> None:
    no_reflect = explore(learner_of_advice(), "algorithm.reflect=false")
    assert [(r.role, r.slot) for r in no_reflect] == [("base", 0), ("base", 1)]
    from_start = by_slot(explore(learner_of_advice(), "algorithm.from_start=true"))
    assert from_start["distilled", 0].trajectory.pivot == 0  # type: ignore[union-attr]
    silent = learner_of_advice()
    unguided = by_slot(explore(silent, "algorithm.guidance=false"))["distilled", 0].trajectory
    assert unguided is not None and unguided.reward == 0.0
    assert not any("say b" in p for p in silent.prompts if "You review" not in p)


@pytest.mark.parametrize(("shift", "pivot"), [(-5, 0), (-1, 0), (0, 1), (1, 2), (5, 2)])
def test_a_shifted_pivot_stays_within_the_attempt(shift: int, pivot: int) -> None:
    slots = by_slot(explore(learner_of_advice(), f"algorithm.pivot_shift={shift}"))
    result = slots["distilled", 0]
    assert result.trajectory is not None and result.trajectory.pivot == pivot
    assert result.reflection is not None and result.reflection.pivot == 1  # as it was written


def test_nothing_is_built_on_an_attempt_that_was_refused() -> None:
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


def test_a_world_that_replays_differently_fails_the_slot_by_name() -> None:
    class Drifting(Corridor):
        calls = 0

        def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
            super().reset(**kwargs)
            Drifting.calls += 1
            return f"door 0 visit {Drifting.calls}", {}

    slots = by_slot(explore(learner_of_advice(), make_env=Drifting))
    assert slots["distilled", 0].status == "failed"
    assert slots["distilled", 0].cause == "replay_diverged"


def test_a_snapshot_is_used_instead_of_a_replay() -> None:
    worlds: list[Corridor] = []

    def make() -> Corridor:
        worlds.append(Corridor(snapshots=True))
        return worlds[-1]

    slots = by_slot(explore(learner_of_advice(), make_env=make))
    assert slots["distilled", 0].trajectory is not None
    # Three steps of the base attempt, two of the retry, none replayed.
    assert sum(w.steps_taken for w in worlds) == 3 + 2
    assert all(w.closed == 1 for w in worlds)


def test_a_world_that_raises_fails_its_slots_and_nothing_else() -> None:
    class Broken(Corridor):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            raise OSError("power cut")

    slots = by_slot(explore(learner_of_advice(), make_env=Broken))
    assert slots["base", 0].cause == "environment_OSError"
    assert slots["distilled", 0].cause == "no_base"


def test_a_full_context_ends_the_attempt_with_its_cause() -> None:
    policy = learner_of_advice()
    whole = by_slot(explore(policy))["base", 0].trajectory
    assert whole is not None
    small = learner_of_advice(reflection("success", None))
    small.context_length = int(whole.step_spans[1, 0])
    short = by_slot(explore(small, "algorithm.reflect=false"))["base", 0].trajectory
    assert short is not None and (short.finish, short.num_steps) == ("context_overflow", 1)


def test_seeds_are_fixed_by_the_group_and_differ_between_its_parts() -> None:
    one, two, other = learner_of_advice(), learner_of_advice(), learner_of_advice()
    explore(one, seed=1)
    explore(two, seed=1)
    explore(other, seed=2)
    seeds = sorted(p.seed for p in one.asked if p.seed is not None)
    assert seeds == sorted(p.seed for p in two.asked if p.seed is not None)
    assert len(set(seeds)) == len(one.asked)
    assert not set(seeds) & {p.seed for p in other.asked}


def test_replay_names_the_step_that_differs() -> None:
    from r3l.rollout.attempt import restore

    base = by_slot(explore(learner_of_advice()))["base", 0].trajectory
    assert base is not None
    with pytest.raises(ReplayDiverged, match="observation 0 differs"):
        asyncio.run(restore(Corridor(), Task("t", "corridor", seed=8), base, 1))


class Faulty(Corridor):
    """Answers one call with something an environment must not say."""

    def __init__(self, call: str, answer: Any) -> None:
        super().__init__()
        self.fault = call, answer

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__
        if name in ("reset", "step", "close") and own("fault")[0] == name:
            answer = own("fault")[1]

            def faulty(*_: Any, **__: Any) -> Any:
                if isinstance(answer, Exception):
                    raise answer
                return answer

            return faulty
        return own(name)


@pytest.mark.parametrize(
    ("call", "answer", "cause"),
    [
        ("reset", (7, {}), "bad_observation"),
        ("reset", "text alone", "bad_reset"),
        ("reset", ValueError("no such task"), "environment_ValueError"),
        ("step", (None, 0.0, False, False, {}), "bad_observation"),
        ("step", ("on", float("nan"), False, False, {}), "bad_reward"),
        ("step", ("on", "much", False, False, {}), "bad_reward"),
        ("step", ("on", 10**400, False, False, {}), "bad_reward"),
        ("step", ("on", 1e100, False, False, {}), "bad_reward"),  # ten of them
        ("step", ("on", 0.0, True, {}), "bad_step"),
    ],
)
def test_an_environment_at_fault_fails_the_slot_by_name(call: str, answer: Any, cause: str) -> None:
    slots = by_slot(explore(learner_of_advice(), make_env=lambda: Faulty(call, answer)))
    assert slots["base", 0].status == "failed" and slots["base", 0].cause == cause
    assert slots["distilled", 0].cause == "no_base"


def test_an_environment_that_cannot_be_made_fails_the_slot_and_one_that_cannot_close_does_not() -> (
    None
):
    def make() -> Corridor:
        raise OSError("no display")

    slots = by_slot(explore(learner_of_advice(), make_env=make))
    assert slots["base", 0].cause == "environment_OSError"
    make = partial(Faulty, "close", OSError("still busy"))
    assert by_slot(explore(learner_of_advice(), make_env=make))["base", 0].status == "done"


def test_rewards_are_recorded_in_units_of_the_success_threshold() -> None:
    def make() -> Corridor:
        env = Corridor()
        env.spec = replace(env.spec, success_threshold=0.5)
        return env

    trajectory = by_slot(explore(learner_of_advice(), make_env=make))["distilled", 0].trajectory
    assert trajectory is not None and trajectory.reward == 2.0


@pytest.mark.parametrize("threshold", [0.0, -110.0, float("nan"), float("inf")])
def test_a_success_threshold_that_would_turn_or_lose_the_reward_is_refused(
    threshold: float,
) -> None:
    with pytest.raises(UserError, match="must be positive"):
        replace(Corridor().spec, success_threshold=threshold)


class Scored(Corridor):
    """Every door rightly opened earns `points`, at once."""

    points = 0.25

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, _, done, truncated, info = super().step(action)
        right = self.given[-1] == self.answers[len(self.given) - 1]
        return observation, self.points * right, done, truncated, info


@pytest.mark.parametrize("snapshots", [True, False])
def test_the_reward_of_a_retry_holds_what_its_prefix_earned(snapshots: bool) -> None:
    slots = by_slot(explore(learner_of_advice(), make_env=lambda: Scored(snapshots=snapshots)))
    base, retry = slots["base", 0].trajectory, slots["distilled", 0].trajectory
    assert base is not None and retry is not None and retry.pivot == 1
    assert (base.reward, retry.reward) == (0.5, 0.75)


def test_small_rewards_add_up_to_a_full_success_and_not_to_a_rounding_error() -> None:
    class Tenths(Scored):
        points = 0.1

        def __init__(self) -> None:
            super().__init__("aaaaaaaaaa")

    policy = ScriptedPolicy(lambda prompt: "a")
    base = by_slot(explore(policy, "algorithm=raft", make_env=Tenths))["base", 0].trajectory
    assert sum([0.1] * 10) < 1.0
    assert base is not None and base.num_steps == 10 and base.reward == 1.0


def test_a_retry_for_which_the_context_has_no_room_fails_its_slot_and_keeps_the_reflection() -> (
    None
):
    policy = learner_of_advice(reflection(advice="say b " + "at length " * 300))
    policy.context_length = 3000
    result = by_slot(explore(policy))["distilled", 0]
    assert (result.status, result.cause) == ("failed", "context_overflow")
    assert result.reflection is not None and result.reflection.pivot == 1


def test_trouble_that_an_attempt_outlives_is_named_in_its_record() -> None:
    class Troubled(Corridor):
        def step(self, action: str) -> Any:
            *answer, _ = super().step(action)
            return *answer, {"fault": "scorer_ValueError" if action == "x" else ""}

    slots = by_slot(explore(learner_of_advice(), make_env=Troubled))
    base, retry = slots["base", 0].trajectory, slots["distilled", 0].trajectory
    assert (
        base is not None and base.faults.count("scorer_ValueError") == base.actions.count("x") > 0
    )
    assert retry is not None and retry.faults == ()
