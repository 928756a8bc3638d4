"""The control of R³'s ranking gives the same rewards in an order of chance."""

import numpy as np

from benchmarks.results.experiments import VARIANTS
from benchmarks.results.random_ranking import RandomRanking, shuffled
from r3l.algorithms.published.r3 import R3Config
from r3l.config import load


def test_the_rewards_of_all_ranks_are_given_once_and_nothing_else_changes() -> None:
    random = np.random.default_rng(0)
    entropies = {place: random.random(4 + place) for place in (0, 2, 3)}
    shaped = shuffled(np.zeros(5), entropies, ranking_max=0.5)
    assert sorted(shaped[[0, 2, 3]]) == [0.0, 0.25, 0.5] and not shaped[[1, 4]].any()
    assert (shaped == shuffled(np.zeros(5), entropies, ranking_max=0.5)).all()
    orders = {
        tuple(shuffled(np.zeros(3), {i: random.random(3) for i in range(3)}, ranking_max=0.5))
        for _ in range(100)
    }
    assert len(orders) == 6
    assert not shuffled(np.zeros(2), {1: np.ones(2)}, ranking_max=0.5).any()


def test_a_run_finds_it_by_its_path_and_is_otherwise_that_of_the_ranking() -> None:
    control, ranked = (
        load(None, VARIANTS[name].overrides).algorithm for name in ("ranked_random", "ranked")
    )
    assert isinstance(ranked, R3Config) and RandomRanking.__name__ == type(control).__name__
    assert control.model_dump() | {"name": "r3"} == ranked.model_dump()
    assert control.build().ranking is not None and control.build().mix_recalled is not None
