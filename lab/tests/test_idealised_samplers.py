"""The prediction of the study of samplers: which groups are trained again, and what a step does."""

import numpy as np
import pytest

from lab import idealised_samplers
from lab.idealised import Table
from lab.idealised_samplers import SAMPLERS, WORLD, Played, choose, learn, play, steps
from lab.sampler_study import SAMPLERS as STUDIED


def group(spread=0.0, trained=0):
    rewards = np.array([0.0, 2 * spread])
    return Played(np.zeros((2, 3), int), np.zeros((2, 3), int), np.zeros((2, 3)), rewards,
                  trained=trained)  # fmt: skip


def test_each_sampler_trains_its_own_choice_again(monkeypatch):
    monkeypatch.setattr(idealised_samplers, "REPLAYED", 1)
    rng, old, rich = np.random.default_rng(0), group(trained=1), group(0.5, trained=9)
    groups = [rich, old, *(group(trained=n) for n in range(2, 9))]
    assert choose("fifo", groups, rng) == [old]
    found = {
        name: [choose(name, groups, rng)[0] is rich for _ in range(200)] for name in SAMPLERS[1:]
    }
    assert np.mean(found["uniform"]) < 0.2 < 0.7 < np.mean(found["prioritised"])
    assert np.mean(found[SAMPLERS[3]]) > 0.7
    assert SAMPLERS == STUDIED


def test_a_step_makes_what_succeeded_more_probable_and_needs_contrast():
    table = Table(WORLD, 0)
    won = next(each for each in (play(table) for _ in range(999)) if each.spread > 0)
    before = table.chances().copy()
    learn(table, [group()])
    assert np.array_equal(table.chances(), before)
    learn(table, [won])
    items = won.items[0][won.items[0] >= 0]
    assert (table.chances()[items, 0] > before[items, 0]).all()


def test_a_run_ends_at_its_success_or_its_limit(monkeypatch):
    monkeypatch.setattr(idealised_samplers, "LIMIT", 3)
    taken, contrast = steps("uniform", 0)
    assert taken == 3 and 0 <= contrast <= 1
    assert WORLD.base_success() == pytest.approx(0.02, abs=0.005)
