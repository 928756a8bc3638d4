"""Ranking by entropies, against literal numbers and a slow transcription of the paper's rule."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from r3l.algorithms.batch import Batch
from r3l.algorithms.shared import entropy_ranking
from r3l.algorithms.shared.entropy_ranking import ranked, structure, truncated
from r3l.records import Extra, Shown
from tests.r3l.algorithms.fakes import group_of

RULE = {"peak_share": 0.2, "largest": 0.5}
rank = partial(ranked, **RULE)


def slowly(entropies, share, largest):
    """Every order that breaks ties differently gives a tie the same mean reward."""
    count = len(entropies)
    if count == 1:
        return [0.0]
    peaks, wholes = [], []
    for values in entropies:
        k = max(1, math.floor(share * len(values)))
        peaks.append(sum(sorted(values, reverse=True)[:k]) / k)
        wholes.append(sum(values) / len(values))
    wins = []
    for i in range(count):
        wins.append(0)
        for j in range(count):
            if peaks[i] > peaks[j] and wholes[i] < wholes[j]:
                wins[i] += 1
    found = []
    for i in range(count):
        better = sum(wins[j] > wins[i] for j in range(count))
        equal = sum(wins[j] == wins[i] for j in range(count))
        rewards = [largest * (1 - k / (count - 1)) for k in range(better, better + equal)]
        found.append(sum(rewards) / equal)
    return found


def cut(attempt, finish="step_limit", **more):
    return replace(attempt, finish=finish, **more)


def test_a_high_peak_over_a_low_level_ranks_first():
    entropies = [
        np.array([2.0, 0.6, 0.6, 0.6, 0.6]),  # peak 2.0, level 0.88: dominates the last
        np.array([3.0, 0.1, 0.1, 0.1, 0.1]),  # peak 3.0, level 0.68: dominates both
        np.array([1.0, 1.0, 1.0, 1.0, 1.0]),  # peak 1.0, level 1.00
    ]
    assert ranked(entropies, **RULE).tolist() == [0.25, 0.5, 0.0]
    assert ranked(entropies, peak_share=0.2, largest=0.9).tolist() == [0.45, 0.9, 0.0]


def test_a_peak_is_the_mean_of_the_largest_entropies_and_of_one_at_least():
    values = np.array([4.0, 0.0, 2.0, 0.0, 0.0])
    assert structure(values, 0.2) == structure(values, 0.39) == (4.0, 1.2)
    assert structure(values, 0.4) == (3.0, 1.2) and structure(values, 1.0) == (1.2, 1.2)
    assert structure(values[:1], 0.01) == (4.0, 4.0) and structure(values[:0], 0.2) == (0.0, 0.0)


def test_ties_share_the_mean_of_their_ranks_and_one_alone_gets_nothing():
    same = np.array([1.0, 0.5])
    assert ranked([same, same], **RULE).tolist() == [0.25, 0.25]
    last = [np.array([3.0, 0.0]), np.array([1.0, 2.2]), np.array([2.2, 1.0])]  # levels 1.5, 1.6
    assert ranked(last, **RULE).tolist() == [0.5, 0.125, 0.125]
    assert ranked(last[:1], **RULE).tolist() == [0.0]


@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=12),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([0.05, 0.2, 0.5, 1.0]),
    st.randoms(use_true_random=False),
)
def test_the_ranking_follows_its_transcription_in_any_order(given_entropies, share, random):
    entropies = [np.array(values) for values in given_entropies]
    got = ranked(entropies, peak_share=share, largest=0.5)
    assert got == pytest.approx(slowly(given_entropies, share, 0.5), abs=1e-12)
    assert (got >= 0).all() and (got < 1).all()
    # all ranks are given once
    assert got.sum() == pytest.approx(0.25 * len(entropies) if len(entropies) > 1 else 0.0)
    order = list(range(len(entropies)))
    random.shuffle(order)
    again = ranked([entropies[i] for i in order], peak_share=share, largest=0.5)
    assert again == pytest.approx(got[order], abs=1e-12)


def test_truncated_attempts_of_groups_without_success_are_ranked(make_trajectory):
    response = Extra(step_cut=np.array([True, False]))
    attempts = [
        make_trajectory(slot=0),
        cut(make_trajectory(slot=1), "context_overflow"),
        cut(make_trajectory(slot=3), "truncated"),
        make_trajectory(slot=4, reward=0.9, extra=response),
        cut(make_trajectory(slot=6)),
    ]
    assert truncated(group_of(attempts)) == [1, 2, 3, 4]
    assert truncated(group_of([*attempts, make_trajectory(slot=7, reward=1.0)])) == []
    assert truncated(group_of([])) == []


def batch_of(attempts, entropies):
    """A batch of one group, with the answers to its queries: `entropies`, by slot."""
    batch = Batch([group_of(attempts)])
    answers = {}
    for query in entropy_ranking.queries(batch):
        values = np.zeros(len(query.token_ids), np.float32)
        values[query.mask] = entropies[query.key[3]]
        answers[query.key] = values
    return batch.with_answers(answers)


def test_ranks_replace_the_rewards_of_truncated_attempts_alone(make_trajectory):
    attempts = [
        cut(make_trajectory([5], slot=0, reward=0.3)),
        make_trajectory([5], slot=1, reward=0.4),
        cut(make_trajectory([5], slot=3)),
    ]
    batch = batch_of(attempts, {0: [1.0] * 5, 3: [3.0, 0.1, 0.1, 0.1, 0.1]})
    [group] = batch.groups
    assert len(batch.answers) == 2
    assert entropy_ranking.rewards(batch, group, rank).tolist() == [0.0, 0.4, 0.5]
    unasked = batch.with_answers({})
    assert entropy_ranking.rewards(unasked, group, rank).tolist() == [0.3, 0.4, 0.0]


def test_a_single_truncated_attempt_gets_nothing_and_is_not_asked_about(make_trajectory):
    batch = Batch([group_of([cut(make_trajectory(reward=0.5)), make_trajectory(slot=1)])])
    assert list(entropy_ranking.queries(batch)) == []
    assert entropy_ranking.rewards(batch, batch.groups[0], rank).tolist() == [0.0, 0.0]


def test_entropies_are_those_in_the_context_that_was_read_at_its_temperature(make_trajectory):
    context = Shown(np.array([7, 8, 9, 7, 8], np.int32), 0, 3)
    attempts = [
        cut(make_trajectory([2, 3], slot=0), shown=context, temperature=0.7),
        cut(make_trajectory([2, 3], slot=1), temperature=0.0),
    ]
    first, second = entropy_ranking.queries(Batch([group_of(attempts)]))
    assert first.token_ids[:5].tolist() == [7, 8, 9, 7, 8] and len(first.token_ids) == 12
    assert np.flatnonzero(first.mask).tolist() == [5, 6, 9, 10, 11]
    assert np.flatnonzero(second.mask).tolist() == [3, 4, 7, 8, 9]
    assert (first.find, first.temperature, second.temperature) == ("entropy", 0.7, 1.0)
