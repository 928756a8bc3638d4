"""One attempt: its tokens, its rewards, and going back to a step of another one."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from r3l.errors import ReplayDiverged
from r3l.records import Task
from r3l.rollout.policy_interface import Sample, SampleParams
from tests.r3l.fakes import Corridor, ScriptedPolicy
from tests.r3l.rollout.fakes import (
    always_right,
    explore,
    explored,
    learner_of_advice,
    reflection,
)


def test_a_distilled_trajectory_has_the_tokens_of_an_unguided_conversation() -> None:
    policy = learner_of_advice()
    retry = explore(policy)[1].trajectory
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
    base = explore(policy)[0].trajectory
    assert base is not None
    guided = next(p for p in policy.prompts if "say b" in p and "You review" not in p)
    prefix_end = int(base.step_spans[1, 0]) - len(policy.chat.prompt_ids)
    prefix = policy.chat.tokenizer.decode(base.token_ids[:prefix_end].tolist())
    assert guided.startswith(prefix + "<|im_start|>system\n")


def test_a_pivot_of_zero_puts_the_guidance_into_the_system_prompt() -> None:
    policy = learner_of_advice(reflection(step=0))
    retry = explore(policy)[1].trajectory
    assert retry is not None and retry.pivot == 0 and retry.actions == ("a", "b", "c")
    guided = next(p for p in policy.prompts if "say b" in p and "You review" not in p)
    assert guided.startswith("<|im_start|>system\nAnswer.\nAdvice")
    assert guided.count("<|im_start|>system") == 1


def test_a_world_that_replays_differently_fails_the_slot_by_name() -> None:
    class Drifting(Corridor):
        calls = 0

        def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
            super().reset(**kwargs)
            Drifting.calls += 1
            return f"door 0 visit {Drifting.calls}", {}

    slots = explore(learner_of_advice(), make_env=Drifting)
    assert (slots[1].status, slots[1].cause) == ("failed", "replay_diverged")


def test_a_snapshot_is_used_instead_of_a_replay() -> None:
    worlds: list[Corridor] = []

    def make() -> Corridor:
        worlds.append(Corridor(snapshots=True))
        return worlds[-1]

    slots = explore(learner_of_advice(), make_env=make)
    assert slots[1].trajectory is not None
    # Three steps of the base attempt, two of the retry, none replayed.
    assert sum(w.steps_taken for w in worlds) == 3 + 2
    assert all(w.closed == 1 for w in worlds)


def test_a_full_context_ends_the_attempt_with_its_cause() -> None:
    policy = learner_of_advice()
    whole = explore(policy)[0].trajectory
    assert whole is not None
    small = learner_of_advice(reflection("success", None))
    small.context_length = int(whole.step_spans[1, 0])
    short = explore(small, "algorithm.reflect=false")[0].trajectory
    assert short is not None and (short.finish, short.num_steps) == ("context_overflow", 1)


def test_a_response_that_its_budget_or_the_context_cuts_off_is_told_in_the_record() -> None:
    policy = learner_of_advice(reflection("failure", 1))
    settings = ("actor.max_response_tokens=1", "algorithm.group_size=2")
    slots = explore(policy, *settings)
    base, retry = slots[0].trajectory, slots[1].trajectory
    assert base is not None and retry is not None
    assert (base.cut_responses, base.num_steps) == (3, 3)  # one character each
    assert (retry.cut_responses, retry.num_steps) == (2, 3)  # of its own

    class Narrow(ScriptedPolicy):
        async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
            return replace(await super().sample(token_ids, params), finish_reason="overflow")

    class Once(Corridor):
        def __init__(self) -> None:
            super().__init__("a")  # the first answer ends the attempt

    narrow = Narrow(always_right)
    result = explore(narrow, "algorithm=grpo", make_env=Once)[0].trajectory
    assert result is not None and (result.finish, result.reward) == ("context_overflow", 1.0)


def test_a_diverging_replay_names_the_step_that_differs() -> None:
    from r3l.rollout.attempt import restore

    base = explore(learner_of_advice())[0].trajectory
    assert base is not None
    with pytest.raises(ReplayDiverged, match="observation 0 differs"):
        asyncio.run(restore(Corridor(), Task("t", "corridor", seed=8), base, 1))


def test_rewards_are_recorded_in_units_of_the_success_threshold() -> None:
    def make() -> Corridor:
        env = Corridor()
        env.spec = replace(env.spec, success_threshold=0.5)
        return env

    trajectory = explore(learner_of_advice(), make_env=make)[1].trajectory
    assert trajectory is not None and trajectory.reward == 2.0


class Scored(Corridor):
    """Every door rightly opened earns `points`, at once."""

    points = 0.25

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, _, done, truncated, info = super().step(action)
        right = self.given[-1] == self.answers[len(self.given) - 1]
        return observation, self.points * right, done, truncated, info


@pytest.mark.parametrize("snapshots", [True, False])
def test_the_reward_of_a_retry_includes_the_reward_of_its_prefix(snapshots: bool) -> None:
    slots = explore(learner_of_advice(), make_env=lambda: Scored(snapshots=snapshots))
    base, retry = slots[0].trajectory, slots[1].trajectory
    assert base is not None and retry is not None and retry.pivot == 1
    assert (base.reward, retry.reward) == (0.5, 0.75)


def test_small_rewards_add_up_to_a_full_success_and_not_to_a_rounding_error() -> None:
    class Tenths(Scored):
        points = 0.1

        def __init__(self) -> None:
            super().__init__("aaaaaaaaaa")

    policy = ScriptedPolicy(lambda prompt: "a")
    base = explore(policy, "algorithm=raft", make_env=Tenths)[0].trajectory
    assert sum([0.1] * 10) < 1.0
    assert base is not None and base.num_steps == 10 and base.reward == 1.0


def test_a_retry_too_long_for_the_context_fails_its_slot_and_keeps_the_reflection() -> None:
    policy = learner_of_advice(reflection(advice="say b " + "at length " * 300))
    policy.context_length = 3000
    (_, result), reflections = explored(policy)
    assert (result.status, result.cause) == ("failed", "context_overflow")
    assert reflections["reflect-0"].pivot == 1


def test_a_fault_that_an_attempt_survives_is_named_in_its_record() -> None:
    class Troubled(Corridor):
        def step(self, action: str) -> Any:
            *answer, _ = super().step(action)
            return *answer, {"fault": "scorer_ValueError" if action == "x" else ""}

    slots = explore(learner_of_advice(), make_env=Troubled)
    base, retry = slots[0].trajectory, slots[1].trajectory
    assert (
        base is not None and base.faults.count("scorer_ValueError") == base.actions.count("x") > 0
    )
    assert retry is not None and retry.faults == ()


def test_parts_of_a_reward_are_summed_over_the_steps_that_were_played() -> None:
    class Judged(Corridor):
        def step(self, action: str) -> Any:
            *answer, _ = super().step(action)
            return *answer, {"rewards": {"right": float(action != "x"), "cost": -0.5}}

    slots = explore(learner_of_advice(), make_env=Judged)
    base, retry = slots[0].trajectory, slots[1].trajectory
    assert base is not None and retry is not None and retry.pivot > 0
    right = sum(action != "x" for action in base.actions)
    assert base.extra.reward_parts == {"right": float(right), "cost": -0.5 * base.num_steps}
    assert retry.extra.reward_parts["cost"] == -0.5 * (retry.num_steps - retry.pivot)
