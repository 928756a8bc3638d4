"""What the lines of a run say: windows of attempts, gaps, trends, changes of evaluations."""

import math
import random
from statistics import fmean

import pytest

from launch.inspection.evidence import BLOCKS, LOOKED_AT, NEWEST, Evidence, Window, change
from r3l.run.files.progress_lines import StepLine
from tests.r3l.files.made import evaluation


def step(attempts: float, **metrics: float) -> StepLine:
    return StepLine(1, {"group/attempts": attempts} | {f"group/{k}": v for k, v in metrics.items()})


def test_a_window_weighs_its_steps_by_their_attempts() -> None:
    window = Window([step(10, share=1.0), step(30, share=0.0), step(99)])
    assert window.mean("group/share") == 0.25 and window.attempts == 139
    assert window.mean("group/other") == 0.0
    assert Window([step(63)]).enough is False and Window([step(64)]).enough
    assert Window([StepLine(n) for n in range(LOOKED_AT)]).enough


def test_a_median_of_two_steps_is_below_and_above_no_limit() -> None:
    assert math.isnan(Window([step(99, kl=9.0)] * 2).median("group/kl"))
    assert Window([step(99, kl=9.0), step(9, kl=1.0), step(9, kl=2.0)]).median("group/kl") == 2.0


@pytest.mark.parametrize(("size", "kept"), [(8, NEWEST // 8), (100, LOOKED_AT), (0, LOOKED_AT)])
def test_the_newest_steps_are_kept_and_no_more(size: int, kept: int) -> None:
    evidence = Evidence([step(size)] * 500)
    assert len(evidence.steps) == kept and evidence.attempts == 500 * size
    assert len(evidence.rewards) <= BLOCKS


@pytest.mark.parametrize("size", [None, 0, 8])
def test_the_memory_does_not_grow_with_the_run(size: int | None) -> None:
    steps = [StepLine(n) if size is None else step(size, reward_mean=0.5) for n in range(1000)]
    held = vars(Evidence(steps)).values()
    assert max(len(each) for each in held if hasattr(each, "__len__")) <= NEWEST


def test_a_block_is_the_mean_reward_of_its_attempts() -> None:
    evidence = Evidence([step(8, reward_mean=1.0), step(24, reward_mean=0.0), step(32)] * 2)
    assert evidence.rewards.count(0.25) == 2 == len(evidence.rewards)
    assert list(Evidence([step(64)]).rewards) == [0.0]


def test_attempts_are_counted_since_the_last_success_contrast_and_better_retry() -> None:
    good = step(10, successes=1, no_contrast=0.9, retries=4, improvement_rate=0.25)
    poor = step(10, successes=0, no_contrast=1.0, retries=4, improvement_rate=0.0)
    evidence = Evidence([poor, good, poor, poor])
    assert evidence.attempts == 40 and evidence.successes == 1
    since = evidence.since_success, evidence.since_contrast, evidence.since_improvement
    assert since == (20, 20, 8)


def test_a_share_is_that_of_the_newest_evaluation_until_enough_attempts_are_made() -> None:
    evidence = Evidence([step(8, cut=0.5)], [evaluation(0, cut=0.75, tasks=40)])
    assert evidence.share("cut") == (0.75, 40)
    evidence.add_step(step(56, cut=0.5))
    assert evidence.share("cut") == (0.5, 64)
    assert Evidence([step(8, cut=0.5)]).share("cut") is None


def test_the_first_the_best_and_the_newest_evaluation_are_kept() -> None:
    lines = [evaluation(n, success) for n, success in enumerate((0.2, 0.8, 0.4, 0.8, 0.1))]
    evidence = Evidence([], lines)
    assert evidence.evaluations == (lines[0], lines[1], lines[4]) and evidence.evaluated == 5


def test_noise_seldom_rises_and_a_trend_does() -> None:
    chance = random.Random(0)

    def rises(slope: float) -> float:
        made = (
            [step(64, reward_mean=slope * n + chance.gauss(0.1, 0.02)) for n in range(12)]
            for _ in range(300)
        )
        return fmean(Evidence(steps).rises for steps in made)

    assert rises(0.0) < 0.06 and rises(0.01) > 0.99
    assert not Evidence([step(64, reward_mean=0.1)] * 12).rises
    assert not Evidence([step(64, reward_mean=0.1 * n) for n in range(3)]).rises


def test_the_interval_of_a_difference_is_that_of_newcombe() -> None:
    """Newcombe 1998, table II, method 10, (a): 56/70 and 48/80 differ by 0.0524 to 0.3339."""
    one = {"tasks": 70, "success_low": 0.6919, "success_high": 0.8771}
    two = {"tasks": 80, "success_low": 0.4904, "success_high": 0.7004}
    found = change(evaluation(9, 48 / 80, **two), evaluation(0, 56 / 70, **one), "success")
    assert found is not None
    assert found.low == pytest.approx(0.0524, abs=2e-3)
    assert found.high == pytest.approx(0.3339, abs=2e-3)
    assert change(evaluation(0), evaluation(9), "success") is None
