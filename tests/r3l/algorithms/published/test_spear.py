"""SPEAR: literal advantages of replayed groups, and what a batch makes of them."""

import numpy as np
import pytest
from msgspec.structs import replace

from learner.step.batch import rows_of
from r3l.algorithms.algorithm import ReplayContext
from r3l.algorithms.published.spear import SPEARConfig, imitated
from r3l.run.config import load
from tests.learner.fakes import explore_group


@pytest.mark.parametrize(
    ("version", "weight"),
    [(0, 6.168375916970614e-05), (49, 0.14644660940672624), (99, 0.5), (199, 1.0), (999, 1.0)],
)
def test_the_weight_of_imitation_rises_over_the_warm_up(version: int, weight: float) -> None:
    rewards, own = np.array([1.0, 0.5, 0.0]), np.array([1.2, 0.1, -1.3])
    got, keep = imitated(rewards, own, ReplayContext(version, 0.25), steps=200)
    assert got.tolist() == pytest.approx([0.75 * weight, 0.25 * weight, 0.0])
    assert keep.tolist() == [True, True, False]


def test_what_the_policy_does_better_by_now_is_left_out() -> None:
    rewards, own = np.array([1.0, 0.5, 0.0]), np.array([1.2, 0.1, -1.3])
    got, keep = imitated(rewards, own, ReplayContext(9, 0.5), steps=0)
    assert (got.tolist(), keep.tolist()) == ([0.5, 0.0, 0.0], [True, False, False])
    assert not imitated(rewards, own, ReplayContext(9, 1.0), steps=0)[1].any()


def test_the_baseline_of_a_batch_is_the_median_of_its_new_groups() -> None:
    rewards = {"g0": (1.0, 0.0), "g1": (0.0, 0.0), "g2": (0.6, 0.2), "old": (1.0, 0.0, 0.0)}
    groups = [replace(explore_group(own, ()), group_id=name) for name, own in rewards.items()]
    algorithm = SPEARConfig(group_size=2).build()
    rows = rows_of(groups, algorithm, replayed=("old",), version=99)
    # means 0.5, 0 and 0.4 of the new groups: the median is 0.4; the weight of step 100 is 1/2
    [reused] = [row for row in rows if row.reused]
    assert reused.advantage == pytest.approx(0.5 * (1.0 - 0.4))
    # kept: six attempts of new groups, and one of the replayed group
    [plain, *_] = [row for row in rows if not row.reused]
    assert plain.advantage == pytest.approx(1.0, abs=1e-4)
    assert reused.weight * reused.mask.sum() == pytest.approx(1 / 7)
    new = [row.advantage for row in rows_of(groups[:3], algorithm, version=99)]
    assert [row.advantage for row in rows if not row.reused] == new


def test_without_new_groups_the_replayed_ones_are_the_baseline() -> None:
    old = replace(explore_group((1.0, 0.0), ()), group_id="old")
    config = SPEARConfig(group_size=2, imitation_steps=0)
    [row] = rows_of([old], config.build(), replayed=("old",))
    assert row.advantage == pytest.approx(0.5)


def test_the_recipe_of_the_documentation_is_a_configuration() -> None:
    config = load(
        None,
        [
            "algorithm=spear",
            "buffer.sampler.reuse=2",
            "buffer.sampler.replay_share=0.5",
            "buffer.sampler.replay_staleness=5",
        ],
    )
    assert config.algorithm.build().replay_rule is not None
