"""The mean rewards of a whole run: noise says nothing, a gain and a fall are told."""

import math
import random

import pytest

from launch.inspection.reward_course import WINDOW, Course


def course(*rewards: float) -> Course:
    so_far = Course()
    for reward in rewards:
        so_far = so_far.after(reward)
    return so_far


@pytest.mark.parametrize("scale", [0.05, 0.5])
def test_noise_without_a_trend_neither_rises_nor_falls(scale: float) -> None:
    chance, so_far, rose = random.Random(1), Course(), 0
    for _ in range(5000):
        so_far = so_far.after(chance.gauss(0.5, scale))
        assert not so_far.fell
        rose += so_far.rose
    assert rose < 500  # the first blocks may be low


def test_rare_successes_are_no_fall() -> None:
    chance, so_far = random.Random(2), Course()
    for _ in range(2000):
        so_far = so_far.after(sum(chance.random() < 0.01 for _ in range(64)) / 64)
        assert not so_far.fell


def test_the_first_the_best_and_the_last_window_are_compared() -> None:
    up = course(*[0.1] * WINDOW, *[0.6, 0.5] * 10)
    assert (up.first, up.best, up.last) == pytest.approx((0.1, 0.55, 0.55))
    assert up.rose and not up.fell
    down = course(*[0.1] * WINDOW, *[0.6, 0.5] * 10, *[0.2, 0.1] * 10)
    assert down.best == pytest.approx(0.55) and down.fell and not course(*[0.5] * 40).fell
    # 19 + 19 steps of 0.1, one of 0.5 and one of 0.3 make 0.72; 49 differences of 50 blocks.
    assert down.squares == pytest.approx(0.72)
    assert down.error == pytest.approx(math.sqrt(0.72 / 2 / 49 * 2 / WINDOW))


def test_few_blocks_and_rewards_that_are_no_numbers_say_nothing() -> None:
    assert not course(*[0.9] * WINDOW, *[0.1] * (WINDOW - 1)).fell
    assert not Course().fell and not Course().rose
    one = course(0.5)
    assert one.after(math.nan) == one == one.after(math.inf)
