"""SPEAR: literal advantages of replayed groups, and what a batch makes of them."""

import pytest

from r3l.algorithms import rows
from r3l.algorithms.batch import Batch
from r3l.run.config import load
from tests.r3l.algorithms.fakes import get, group_of


@pytest.fixture
def made(make_trajectory):
    """Makes a group of these rewards."""

    def make(name, *rewards):
        attempts = [make_trajectory(slot=i, reward=r) for i, r in enumerate(rewards)]
        return group_of(attempts, name=name)

    return make


def replayed(made, version, steps, *new):
    """Advantages of a replayed group, and which of its attempts are kept. `new`: the rewards of a
    new group, whose mean is the baseline."""
    batch = Batch(
        [made("old", 1.0, 0.5, 0.0), made("new", *new)], replayed={"old"}, version=version
    )
    values = get("spear", imitation_steps=steps).advantages(batch)[0]
    return rows.plain(values).tolist(), rows.kept(values).tolist()


@pytest.mark.parametrize(
    ("version", "weight"),
    [(0, 6.168375916970614e-05), (49, 0.14644660940672624), (99, 0.5), (199, 1.0), (999, 1.0)],
)
def test_the_weight_of_imitation_rises_over_the_warm_up(made, version, weight):
    got, keep = replayed(made, version, 200, 0.25, 0.25)
    assert got[0] == pytest.approx(0.75 * weight) and keep == [True, False, False]
    assert get("spear").imitation_share(version) == pytest.approx(weight)


def test_what_the_policy_does_better_by_now_is_left_out(made):
    # the attempts' own advantages: 1.2, 0 and −1.2
    assert replayed(made, 9, 0, 0.75) == ([0.25, 0.0, 0.0], [True, False, False])
    assert replayed(made, 9, 0, 1.0)[1] == [False] * 3


def test_the_baseline_of_a_batch_is_the_median_of_its_new_groups(made):
    rewards = {"g0": (1.0, 0.0), "g1": (0.0, 0.0), "g2": (0.6, 0.2), "old": (1.0, 0.0, 0.0)}
    groups = [made(name, *own) for name, own in rewards.items()]
    algorithm = get("spear")
    found = algorithm.rows(Batch(groups, replayed={"old"}, version=99))
    # means 0.5, 0 and 0.4 of the new groups: the median is 0.4; the weight of step 100 is 1/2
    [reused] = [row for row in found if row.reused]
    assert reused.advantages == pytest.approx(0.5 * (1.0 - 0.4))
    # kept: six attempts of new groups, and one of the replayed group
    plain = [row for row in found if not row.reused]
    assert plain[0].advantages[0] == pytest.approx(1.0, abs=1e-4)
    assert reused.weights[reused.mask].sum() == pytest.approx(1 / 7)
    new = algorithm.rows(Batch(groups[:3], version=99))
    assert [row.advantages[0] for row in plain] == [row.advantages[0] for row in new]


def test_without_new_groups_the_replayed_ones_are_the_baseline(made):
    batch = Batch([made("old", 1.0, 0.0)], replayed={"old"})
    [row] = get("spear", imitation_steps=0).rows(batch)
    assert set(row.advantages.tolist()) == {0.5}


def test_the_recipe_of_the_documentation_is_a_configuration():
    config = load(
        None,
        [
            "algorithm=spear",
            "buffer.sampler.reuse=2",
            "buffer.sampler.replay_share=0.5",
            "buffer.sampler.replay_staleness=5",
        ],
    )
    assert config.algorithm.imitation_steps == 200
