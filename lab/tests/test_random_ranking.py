"""The control of R³'s ranking gives the same rewards in an order of chance."""

import numpy as np
import pytest

from lab.results.experiments import VARIANTS
from lab.results.random_ranking import RandomRanking
from r3l.algorithms.published.r3 import R3
from r3l.run.config import load


def test_the_rewards_of_all_ranks_are_given_once_and_in_every_order() -> None:
    random, control = np.random.default_rng(0), RandomRanking()
    entropies = [random.random(4 + place) for place in range(3)]
    rewards = control.ranked(entropies)
    assert sorted(rewards) == [0.0, 0.25, 0.5]
    assert rewards.tolist() == control.ranked(entropies).tolist()
    orders = {tuple(control.ranked([random.random(3) for _ in range(3)])) for _ in range(100)}
    assert len(orders) == 6


def test_a_run_finds_it_by_its_path_and_is_otherwise_that_of_the_ranking() -> None:
    control, ranked = (
        load(None, VARIANTS[name].overrides).algorithm for name in ("ranked_random", "ranked")
    )
    assert isinstance(ranked, R3) and type(control).__name__ == RandomRanking.__name__
    assert control.model_dump() | {"name": "r3"} == ranked.model_dump()
    assert ranked.ranking and not ranked.reflection and ranked.recall_count == 0


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("r3", (True, None)),
        ("r3_no_recall", (True, 0)),
        ("r3_no_context", (False, None)),
        ("unranked", (False, 0)),
    ],
)
def test_the_variants_of_r3_have_the_parts_that_their_names_say(
    name: str, parts: tuple[bool, int | None]
) -> None:
    algorithm = load(None, VARIANTS[name].overrides).algorithm
    assert isinstance(algorithm, R3)
    assert (algorithm.reflection, algorithm.recall_count) == parts
    assert algorithm.ranking == (name != "unranked")
