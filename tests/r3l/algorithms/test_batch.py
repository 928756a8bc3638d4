"""A batch: which attempts are trained in each group, and what a batch knows besides."""

import pytest

from r3l.algorithms.batch import Batch
from r3l.records import Recalled
from tests.r3l.algorithms.fakes import group_of


@pytest.fixture
def groups(make_trajectory):
    """Two groups of two attempts, and one without attempts."""
    rewards = {"a": (0.0, 1.0), "b": (1.0, 1.0), "none": ()}
    return [
        group_of([make_trajectory(slot=i, reward=r) for i, r in enumerate(own)], name=name)
        for name, own in rewards.items()
    ]


def test_recalled_attempts_come_after_those_of_the_group_they_join(groups, make_trajectory):
    joins = Recalled("b", "g9", make_trajectory(slot=3, reward=0.5))
    lost = Recalled("none", "g9", make_trajectory(slot=4))
    batch = Batch(groups, recalled=[lost, joins])
    sources = batch.sources(groups[1])
    assert [(s.into, s.group_id, s.attempt.slot) for s in sources] == [
        ("b", "b", 0),
        ("b", "b", 1),
        ("b", "g9", 3),
    ]
    assert [batch.recalls(group) for group in groups] == [0, 1, 0]
    assert [len(batch.attempts(group)) for group in groups] == [2, 3, 0]


def test_a_group_weighs_1_if_the_draw_gave_no_weights(groups):
    assert [Batch(groups).weight(i) for i in range(3)] == [1.0] * 3
    assert [Batch(groups, (0.5, 2.0, 1.0)).weight(i) for i in range(3)] == [0.5, 2.0, 1.0]


def test_the_baseline_is_the_median_of_the_new_groups_means(groups):
    assert Batch(groups).baseline == 0.75
    assert Batch(groups, replayed={"b"}).baseline == 0.5
    assert Batch(groups, replayed={"a", "b"}).baseline == 0.75  # no group is new
    assert Batch([]).baseline == Batch(groups[2:]).baseline == 0.0


def test_answers_do_not_change_the_batch_that_was_asked_about(groups):
    batch = Batch(groups, version=3)
    answered = batch.with_answers({"key": 1.0})
    assert (dict(batch.answers), dict(answered.answers)) == ({}, {"key": 1.0})
    assert answered.version == 3 and answered.groups is groups


def test_a_kind_of_batch_of_the_users_own_stays_one_when_it_is_answered(groups):
    class Drawn(Batch):
        pass

    assert type(Drawn(groups).with_answers({})) is Drawn
