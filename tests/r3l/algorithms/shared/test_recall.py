"""Rules of recall: what is chosen from the history of a task."""

import numpy as np

from r3l.algorithms.shared.recall import opposing
from tests.r3l.algorithms.fakes import facts_of, stored


def chosen(rewards, history, seed=0, **more):
    return opposing(
        facts_of(rewards, version=9),
        iter(history),
        lambda: np.random.default_rng(seed),
        **{"count": 2} | more,
    )


HISTORY = [
    stored("g1", 0.0),
    stored("g2", 1.0, 4),
    stored("g3", 0.5),
    stored("g4", 1.5, 8),
    stored("g5", 1.0, 2),
]


def test_a_group_of_failures_recalls_successes_and_the_reverse():
    assert {one.group_id for one in chosen((0.0, 0.9), HISTORY)} < {"g2", "g4", "g5"}
    assert {one.group_id for one in chosen((1.0, 1.2), HISTORY)} == {"g1", "g3"}
    assert chosen((0.0, 1.0), HISTORY) == []


def test_a_group_without_opposing_history_stays_as_it_is():
    assert chosen((0.0,), [stored("g1", 0.0)]) == [] == chosen((0.0,), [])


def test_history_is_not_read_for_a_group_with_both_outcomes():
    history = iter(HISTORY)
    chosen((0.0, 1.0), history)
    assert next(history) is HISTORY[0]


def test_every_choice_is_as_likely_as_the_others():
    counts = dict.fromkeys(("g2", "g4", "g5"), 0)
    for seed in range(3000):
        for one in chosen((0.0,), HISTORY, seed):
            counts[one.group_id] += 1
    assert all(abs(count - 2000) < 120 for count in counts.values())
    assert chosen((0.0,), HISTORY, 7) == chosen((0.0,), HISTORY, 7)


def test_age_and_outcome_can_be_limited():
    assert [one.group_id for one in chosen((0.0,), HISTORY, max_age=5)] == ["g2", "g4"]
    assert chosen((1.0,), HISTORY, successes_only=True) == []
