"""ExIt: partial histories by the variance of their group's rewards."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.r3l.algorithms.fakes import get, plans_of


def test_partial_histories_are_drawn_in_proportion_to_the_variance_of_their_group():
    # variances 0, 1/4 and 1/16: the second group is four times as likely as the third
    found = plans_of(
        get("exit", share=1.0), ("", (1.0, 1.0)), ("", (0.0, 1.0)), ("partial", (0.0, 0.5))
    )
    assert {kind for kind, _ in found} == {"partial"}
    by_group = Counter()
    for (_, (group, _)), count in found.items():
        by_group[group] += count
    assert set(by_group) == {"g2", "g1"} and 290 < by_group["g2"] < 350
    assert min(found.values()) > 20  # each attempt of a group is as likely


def test_half_of_the_groups_are_base_tasks_and_without_variance_all_are():
    assert 160 < plans_of(get("exit"), ("", (0.0, 1.0)))[()] < 240
    flat = plans_of(get("exit", share=1.0), ("", (1.0, 1.0)), ("", (0.0,)))
    assert set(flat) == set(plans_of(get("exit", share=1.0))) == {()}
    assert set(plans_of(get("exit", share=0.0), ("", (0.0, 1.0)))) == {()}


@given(
    groups=st.lists(
        st.tuples(
            st.sampled_from(["", "partial"]),
            st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=4).map(tuple),
        ),
        max_size=5,
    )
)
def test_the_choice_follows_from_the_leases_random_numbers_and_a_slow_count(groups):
    algorithm = get("exit", share=1.0)
    once, again = (plans_of(algorithm, *groups, seeds=8) for _ in range(2))
    assert once == again
    spread = [f"g{len(groups) - n}" for n, (_, r) in enumerate(groups) if len(set(r)) > 1]
    drawn = {plan[1][0] for plan in once if plan}
    assert drawn <= set(spread) and (bool(drawn) == bool(spread))


def test_a_history_is_cut_at_any_step():
    starts = Counter(
        get("exit").start_of("partial", 4, np.random.default_rng(n)) for n in range(300)
    )
    assert set(starts) == {1, 2, 3} and min(starts.values()) > 70
