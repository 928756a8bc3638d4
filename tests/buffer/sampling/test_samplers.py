"""Samplers draw what they say, exactly as many, and the same again under the same seed."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.indexes.drawable_groups import DrawableGroups
from buffer.sampling import samplers
from buffer.sampling.samplers import FLOOR
from buffer.storage.stored_rows import GroupRow
from r3l.errors import UserError
from r3l.records import GroupPlan
from r3l.run.settings.buffer_sampling import SamplerConfig


def _row(number, oldest=0, rewards=(0.0,), uses=0):
    return GroupRow(
        group_id=f"g{number:010d}",
        task_id="t",
        task_index=0,
        plan=GroupPlan(1),
        state="trained" if uses else "complete",
        oldest_version=oldest,
        rewards=rewards,
        steps=tuple(range(uses)),
    )


def _made(name, **settings):
    return samplers.make(SamplerConfig(name=name, **settings))


def _number(pick):
    return int(pick.row.group_id[1:])


MANY = [_row(i, oldest=i * 7 % 5, rewards=(0.0, i % 3 / 2)) for i in range(20)]


@pytest.mark.parametrize("name", samplers.SAMPLERS)
@pytest.mark.parametrize("count", [1, 7, 20])
def test_every_sampler_picks_exactly_as_many_different_groups(name, count):
    picked = _made(name).pick(MANY, count, samplers.random_source(3, 1))
    assert len({pick.row.group_id for pick in picked}) == len(picked) == count


@pytest.mark.parametrize("name", samplers.SAMPLERS)
def test_the_same_seed_and_draw_pick_the_same_groups(name):
    sampler = _made(name)
    first, second = (sampler.pick(MANY, 5, samplers.random_source(3, 9)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", samplers.SAMPLERS)
def test_a_pick_from_the_index_is_that_from_all_rows_but_looks_only_at_what_it_picks(name):
    sampler, groups, looked = _made(name), DrawableGroups(), []
    for row in MANY[::-1]:
        groups.put(row, replayable=False)
    candidates = groups.ready
    find, candidates._row = candidates._row, lambda key: looked.append(key) or find(key)
    found = sampler.pick(candidates, 5, samplers.random_source(3, 9))
    assert len(looked) == 5
    assert found == sampler.pick(MANY, 5, samplers.random_source(3, 9))


@pytest.mark.parametrize("name", ["uniform", "prioritised"])
def test_another_seed_and_another_draw_pick_other_groups(name):
    sampler = _made(name)

    def picks(seed, draw):
        return tuple(map(_number, sampler.pick(MANY, 5, samplers.random_source(seed, draw))))

    assert len({picks(seed, 1) for seed in range(20)}) > 15
    assert len({picks(1, draw) for draw in range(20)}) > 15


def test_contrast_is_the_range_of_rewards():
    assert _row(1, rewards=(0.75, 0.5, 0.625)).contrast == 0.25
    assert _row(1, rewards=(-3.0, -1.0)).contrast == 2.0
    assert _row(1, rewards=(0.9,)).contrast == _row(1, rewards=()).contrast == 0.0


def test_fifo_picks_in_the_order_of_the_leases():
    rows = [_row(1, 5), _row(2, 3), _row(3, 5), _row(4, 4)]
    chance = samplers.random_source(0, 0)

    def picks(name):
        return [_number(pick) for pick in _made(name).pick(rows, 3, chance)]

    assert picks("fifo") == [1, 2, 3]


def _chi_square(counts, probabilities):
    wanted = np.asarray(probabilities) * counts.sum()
    return ((counts - wanted) ** 2 / wanted).sum()


@pytest.mark.parametrize(
    ("sampler", "contrasts", "expected", "draws"),
    [
        (_made("prioritised", alpha=2.0), [1, 2, 3], [1.01**2, 2.01**2, 3.01**2], 100_000),
        (_made("prioritised"), [0, 1, 0.5], [FLOOR, 1 + FLOOR, 0.5 + FLOOR], 10_000),
        (_made("prioritised"), [0, 0, 0], [1, 1, 1], 10_000),
        (_made("prioritised", alpha=0.0), [0, 1, 0.5], [1, 1, 1], 10_000),
        (_made("uniform"), [0, 1, 0.5], [1, 1, 1], 10_000),
    ],
)
def test_groups_come_as_often_as_their_reported_probability(sampler, contrasts, expected, draws):
    rows = [_row(i, rewards=(0.0, reward)) for i, reward in enumerate(contrasts)]
    rng = np.random.default_rng(0)
    counts = np.zeros(len(rows))
    for _ in range(draws):
        (pick,) = sampler.pick(rows, 1, lambda: rng)
        counts[_number(pick)] += 1
    probabilities = np.array(expected) / np.sum(expected)
    assert abs(pick.probability - probabilities[_number(pick)]) < 1e-9
    assert _chi_square(counts, probabilities) < 13.8  # 2 degrees of freedom, p = 0.001


def test_every_further_group_is_picked_in_proportion_to_its_priority_among_the_rest():
    weights = np.array([0.5, 1.0, 2.0]) + FLOOR
    rows = [_row(i, rewards=(0.0, w - FLOOR)) for i, w in enumerate(weights)]
    sampler, rng = _made("prioritised"), np.random.default_rng(1)
    orders = list(itertools.permutations(range(3), 2))
    expected = [
        weights[a] / weights.sum() * weights[b] / (weights.sum() - weights[a]) for a, b in orders
    ]
    counts = np.zeros(len(orders))
    for _ in range(10_000):
        counts[orders.index(tuple(map(_number, sampler.pick(rows, 2, lambda: rng))))] += 1
    assert _chi_square(counts, expected) < 20.5  # 5 degrees of freedom, p = 0.001


@given(
    contrasts=st.lists(st.floats(0, 2e9), min_size=2, max_size=30),
    alpha=st.floats(0, 5),
    beta=st.floats(0, 1),
)
def test_probabilities_are_exact_and_weights_correct_for_them(contrasts, alpha, beta):
    rows = [_row(i, rewards=(0.0, c)) for i, c in enumerate(contrasts)]
    sampler = _made("prioritised", alpha=alpha, beta=beta)
    picks = sampler.pick(rows, len(rows) - 1, samplers.random_source(0, 1))
    exact = (np.array(contrasts) + FLOOR) ** alpha
    exact /= exact.sum()
    for pick in picks:
        assert abs(pick.probability - exact[_number(pick)]) < 1e-9
        n_p = len(rows) * exact[_number(pick)]
        assert pick.weight == pytest.approx(n_p**-beta, rel=1e-9)
    assert sum(pick.probability for pick in picks) <= 1.0 + 1e-9


def test_a_batch_of_all_candidates_was_not_chosen_and_is_not_weighted():
    rows = [_row(i, rewards=(0.0, c)) for i, c in enumerate((0.0, 0.0, 1.0))]
    picks = _made("prioritised").pick(rows, 3, samplers.random_source(0, 1))
    assert [pick.weight for pick in picks] == [1.0] * 3
    assert sum(pick.probability for pick in picks) == pytest.approx(1.0)
    assert max(pick.probability for pick in picks) > 0.9


def test_the_priority_of_a_group_falls_linearly_with_its_uses():
    sampler = _made("prioritised", reuse=9, decay=0.25)
    rows = [_row(i, rewards=(0.0, 1.0), uses=uses) for i, uses in enumerate([0, 1, 4, 6])]
    picks = sampler.pick(rows, 4, samplers.random_source(0, 1))
    shares = {_number(pick): pick.probability for pick in picks}
    total = 1 + 0.75 + 4 * FLOOR
    wanted = [(1 + FLOOR) / total, (0.75 + FLOOR) / total, FLOOR / total, FLOOR / total]
    assert [shares[i] for i in range(4)] == pytest.approx(wanted)


def test_an_unknown_sampler_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"'best': unknown.* fifo, uniform"):
        _made("best")
