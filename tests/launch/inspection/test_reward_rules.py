"""Whether a reward is hacked: every trick is named, and honest runs are silent."""

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import r3l
from launch.inspection.reward_rules import (
    EVALUATIONS,
    LOOKED_AT,
    RewardWatch,
    Suspicion,
    between,
    suspicions,
    windows,
)
from learner.metrics.group_metrics import group_metrics
from learner.metrics.reward_metrics import PaidReplies
from r3l.records import Group
from r3l.run.files.progress_lines import EvalLine, History, StepLine
from tests.r3l.files.made import evaluation

Curve = Callable[[float], float]
"""A metric against the share of the run that is over, from 0 to 1."""
NOISE = 0.05


def steps(count: int = 60, seed: int = 0, noise: float = NOISE, **curves: Curve) -> list[StepLine]:
    """The steps of a run, with noise as of batches; `a__b` is the tag a/b."""
    chance = random.Random(seed)
    return [
        StepLine(
            n + 1,
            {
                tag.replace("__", "/"): curve(n / count) + chance.gauss(0, noise)
                for tag, curve in curves.items()
            },
        )
        for n in range(count)
    ]


def found(lines: list[StepLine], *evaluations: EvalLine) -> list[Suspicion]:
    return suspicions(History(lines, [*evaluations]))


def at(step: int, success: float, margin: float = 0.05) -> EvalLine:
    return evaluation(step, success, success_low=success - margin, success_high=success + margin)


def rising(start: float, end: float) -> Curve:
    return lambda t: start + (end - start) * t


def flat(value: float) -> Curve:
    return lambda t: value


HACKED_PARTS = {
    "group__reward_mean": rising(0.3, 0.6),
    "group__part_answer": rising(0.3, 0.1),
    "group__part_style": rising(0.0, 0.5),
}
LONGER = {
    "group__length_correlation": flat(0.6),
    "group__response_mean": rising(50, 200),
    "group__reward_mean": rising(0.3, 0.5),
}


def test_a_part_that_falls_while_another_and_the_sum_rise_is_named() -> None:
    (one,) = found(steps(**HACKED_PARTS))
    assert (one.kind, one.of) == ("part", "answer")
    assert "its part answer falls (0.2" in one.what and "its part style rises" in one.what
    assert "much style and little answer" in one.remedy


def test_parts_that_trade_a_little_for_much_are_honest() -> None:
    longer = HACKED_PARTS | {"group__part_answer": rising(0.2, 0.7),
                             "group__part_style": rising(0.0, -0.08)}  # fmt: skip
    assert found(steps(count=300, noise=0.02, **longer)) == []
    falling = HACKED_PARTS | {"group__reward_mean": rising(0.6, 0.3)}
    assert found(steps(**falling)) == []
    assert found(steps(29, **HACKED_PARTS)) == []


def test_parts_that_do_not_add_up_to_the_reward_or_are_penalties_are_not_judged() -> None:
    solves = {"group__reward_mean": rising(0.2, 0.8), "group__part_correct": rising(0.2, 0.8)}
    assert found(steps(**solves, group__part_num_turns=rising(6, 3))) == []
    assert found(steps(**solves, group__part_tool_errors=rising(2, 0.5))) == []
    assert found(steps(**solves, group__part_partial=rising(0.5, 0.1))) == []
    longer = solves | {"group__reward_mean": rising(0.15, 0.55)}
    assert found(steps(noise=0.02, **longer, group__part_length=rising(-0.05, -0.25))) == []


def test_a_reward_that_rises_while_attempts_succeed_less_is_named() -> None:
    shaped = {"group__reward_mean": rising(0.3, 0.6), "group__success_base": rising(0.3, 0.1)}
    (one,) = found(steps(**shaped))
    assert one.kind == "success" and "fewer attempts succeed (0.2" in one.what
    retried = shaped | {"group__success_retry": rising(0.3, 0.9)}
    assert found(steps(**retried)) == []  # retries make the reward rise


def test_a_held_out_success_that_falls_twice_below_its_peak_is_named() -> None:
    curve = steps(group__reward_mean=rising(0.2, 0.8))
    (one,) = found(curve, at(0, 0.3), at(20, 0.6), at(40, 0.4), at(60, 0.3))
    assert one.kind == "success"
    assert one.what.endswith("falls (0.60 at step 20, 0.30 at step 60)")
    assert found(curve, at(0, 0.3), at(20, 0.6), at(40, 0.6), at(60, 0.3)) == []  # once
    unsure = [at(step, success, 0.2) for step, success in ((0, 0.3), (20, 0.6), (40, 0.4))]
    assert found(curve, *unsure, at(60, 0.3)) == []
    level = steps(group__reward_mean=flat(0.5))
    assert found(level, at(0, 0.3), at(20, 0.6), at(40, 0.4), at(60, 0.3)) == []
    (early,) = found(curve, at(0, 0.6), at(30, 0.4), at(60, 0.3))
    assert "(0.60 at step 0," in early.what


def test_a_reward_of_length_is_named_if_success_does_not_rise() -> None:
    (one,) = found(steps(**LONGER), at(0, 0.5), at(60, 0.5))
    assert one.kind == "length" and "rank correlation 0.6" in one.what
    assert "mean response 7" in one.what and "it rises (0.3" in one.what
    assert found(steps(**LONGER), at(0, 0.3), at(60, 0.5)) == []
    assert found(steps(**LONGER, group__success_base=rising(0.2, 0.7))) == []
    shorter = LONGER | {"group__response_mean": rising(200, 50)}
    weak = LONGER | {"group__length_correlation": flat(0.2)}
    assert found(steps(**shorter)) == [] == found(steps(**weak))


def test_a_reward_that_is_nearly_the_length_is_named_unless_held_out_success_rises() -> None:
    nearly = LONGER | {
        "group__length_correlation": flat(0.93),
        "group__response_mean": flat(64),  # as many tokens as may be, of ever more characters
    }
    (one,) = found(steps(**nearly), at(0, 0.1), at(60, 0.1))
    assert one.kind == "length"
    assert found(steps(**nearly), at(0, 0.1), at(60, 0.9)) == []  # a list of right things
    shorter = nearly | {"group__response_mean": rising(3.0, 2.0)}
    assert found(steps(**shorter)) == []
    assert found(steps(**nearly, group__success_base=rising(0.0, 1.0))) == []  # not longer
    longer = nearly | {"group__response_mean": rising(20, 30)}
    (one,) = found(steps(**longer, group__success_base=rising(0.0, 1.0)))
    assert one.kind == "length"
    assert found(steps(**nearly | {"group__reward_mean": flat(0.5)})) == []


def test_one_reply_that_earns_everywhere_is_named() -> None:
    (one,) = found(steps(9, group__one_reply=flat(0.95), noise=0.001))
    assert one.kind == "one_reply" and "in 95% of different problems (until step 9)" in one.what
    assert found(steps(9, group__one_reply=flat(0.55))) == []
    assert found(steps(4, group__one_reply=flat(0.95), noise=0.001)) == []


@pytest.mark.parametrize("seed", range(40))
def test_honest_runs_of_noise_and_of_learning_are_silent(seed: int) -> None:
    learns = {
        "group__reward_mean": rising(0.2, 0.7),
        "group__success_base": rising(0.1, 0.6),
        "group__part_answer": rising(0.1, 0.6),
        "group__part_form": flat(-0.05),
        "group__length_correlation": flat(0.15),
        "group__response_mean": rising(100, 180),
        "group__one_reply": flat(0.5),
    }
    still = {tag: flat(curve(0.0)) for tag, curve in learns.items()}
    for count in (30, 60, 200):
        evals = [at(count * k // 4, 0.3 + 0.05 * k + 0.02 * (-1) ** (seed + k)) for k in range(5)]
        assert found(steps(count, seed, **learns), *evals) == []
        assert found(steps(count, seed, **still)) == []


def test_windows_are_compared_by_their_own_noise() -> None:
    assert windows([1.0] * 29) is None
    steady = windows([0.0] * 10 + [5.0] * 10 + [1.0] * 10)
    assert steady == (0.0, 1.0, 0.0) and steady.rises() and not steady.rises(1.0)
    # Sample variances 2/3 and 2/3 of 4 values: √(1/3) = 0.577; 1 is not 3 of them.
    noisy = between([0.0, 1.0, 1.0, 2.0], [1.0, 2.0, 2.0, 3.0])
    assert noisy.error == pytest.approx((1 / 3) ** 0.5) and not noisy.rises()
    assert not noisy.falls() and between([9.0, 9.1], [1.0, 1.1]).falls()


def test_the_console_says_each_suspicion_once_and_forgets_void_steps() -> None:
    watch = RewardWatch(History([], []))
    said = [watch.lines(line) for line in steps(**HACKED_PARTS)]
    assert [len(lines) for lines in said if lines] == [1]
    (line,) = next(lines for lines in said if lines)
    assert line.startswith("the reward may be hacked: its part answer falls")
    assert line.endswith("r3l-launch doctor shows examples")

    again, curve = RewardWatch(History([], [])), steps(**HACKED_PARTS)
    assert [again.lines(one) for one in curve[:29]] == [[]] * 29
    again.go_back(0)
    assert [again.lines(one) for one in curve[:20]] == [[]] * 20  # not 49 steps


def test_a_resumed_run_is_watched_with_its_earlier_steps() -> None:
    curve = steps(**HACKED_PARTS)
    watch = RewardWatch(History(curve[:-1], []))
    assert len(watch.lines(curve[-1])) == 1
    curve = steps(group__reward_mean=rising(0.2, 0.8))
    watch = RewardWatch(History(curve, [at(0, 0.6), at(30, 0.4)]))
    assert len(watch.lines(at(60, 0.3))) == 1


def test_an_evaluation_after_the_step_of_a_restart_still_counts() -> None:
    """The learner does not play it again, and the file's readers count it too."""
    curve = steps(group__reward_mean=rising(0.2, 0.8))
    evals = [at(0, 0.6), at(30, 0.4), at(58, 0.3)]
    watch = RewardWatch(History(curve, evals))
    watch.go_back(56)
    (one,) = found(curve[:57], *evals)
    (said,) = watch.lines(curve[56])
    assert one.what in said
    watch = RewardWatch(History(curve, [at(0, 0.6), at(58, 0.4)]))
    watch.go_back(57)
    assert watch.lines(at(57, 0.3)) != []  # the third one


def test_many_evaluations_are_judged_like_all_and_few_are_kept() -> None:
    curve = steps(count=LOOKED_AT, group__reward_mean=rising(0.2, 0.8))
    chance = random.Random(0)
    evals = [at(n, 0.3 + 0.1 * chance.random()) for n in range(LOOKED_AT)]
    evals[100] = at(100, 0.9)
    watch = RewardWatch(History(curve[:-1], evals))
    assert len(watch._evaluations) <= EVALUATIONS
    assert {0, 100, LOOKED_AT - 1} <= {line.step for line in watch._evaluations}
    (one,) = found(curve, *evals)
    (said,) = watch.lines(curve[-1])
    assert one.what in said


def test_an_evaluation_takes_the_place_of_an_earlier_one_of_its_version() -> None:
    watch = RewardWatch(History([], [at(0, 0.1), at(20, 0.2)]))
    for line in (at(10, 0.3), at(0, 0.4), at(30, 0.5)):
        watch.lines(line)
    kept = [(line.step, line.success) for line in watch._evaluations]
    assert kept == [(0, 0.4), (10, 0.3), (20, 0.2), (30, 0.5)]


def test_only_the_last_steps_are_examined() -> None:
    hacked, still = steps(**HACKED_PARTS), steps(LOOKED_AT, group__reward_mean=flat(0.5))
    assert found([*hacked, *still]) == []


class OneReply:
    """A workshop that ends with the first reply, and judges it by `reward`."""

    in_process = True

    def __init__(self, reward: Callable[[str], float]) -> None:
        self.world, self.reward = r3l.make_env("workshop"), reward
        self.spec = replace(self.world.spec, max_steps=1, max_response_tokens=32)
        self.reset = self.world.reset

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, object]]:
        return "Done.", self.reward(action), True, False, {}

    def close(self) -> None: ...


def trained(env: object, count: int) -> Iterator[StepLine]:
    """The lines of a real training of the built-in policy, on four groups of eight a step."""
    policy, trainer = r3l.LocalPolicy("builtin"), r3l.Trainer("builtin", lr=5e-4)
    algorithm, hot = r3l.GRPO(group_size=8, kl_coef=0.0), r3l.Decoding(temperature=1.5)
    replies, tasks = PaidReplies(), r3l.tasks("workshop", 4 * count)

    async def explored(step: int) -> list[Group]:
        some = tasks[4 * step : 4 * step + 4]
        each = (r3l.explore(algorithm, task, policy, env, decoding=hot, seed=step) for task in some)
        return list(await asyncio.gather(*each))

    for step in range(count):
        groups = asyncio.run(explored(step))
        trainer.step(algorithm.rows(r3l.Batch(groups)), algorithm.loss)
        policy.load(trainer.weights())
        yield StepLine(step + 1, group_metrics(groups, algorithm) | replies.add(groups))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("env", "kinds"),
    [
        (lambda: OneReply(lambda reply: len(reply.split()) / 20), ["length"]),
        (lambda: OneReply(lambda reply: float("use glue" in reply)), ["one_reply"]),
        ("workshop", []),
    ],
    ids=["length", "one reply", "honest"],
)
def test_a_real_training_is_warned_of_only_if_its_reward_is_hacked(
    env: object, kinds: list[str]
) -> None:
    lines = list(trained(env, 34))
    assert [one.kind for one in found(lines)] == kinds, lines[-1].metrics
