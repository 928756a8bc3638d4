"""Costs and ratios from made-up curves."""

import numpy as np
import pytest

from lab.results.statistics import (
    Cost,
    Ratio,
    ceiling,
    cost,
    of_policies,
    pairs,
    ratio,
    smooth,
    t_interval,
)

Run = dict[str, object]


def run(shares: list[float | None], tokens_a_step: int = 10) -> Run:
    tokens = [tokens_a_step * (step + 1) for step in range(len(shares))]
    return {"curve": {"tokens": tokens, "cpu": tokens, "success_base": shares}}


def seeds(*runs: Run) -> list[Run]:
    """The runs, of seeds 0, 1, …"""
    return [one | {"seed": seed} for seed, one in enumerate(runs)]


def test_a_success_is_reached_when_the_mean_of_five_steps_is() -> None:
    curve = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert smooth(curve) == pytest.approx([0, 0, 0, 0, 0.2, 0.4, 0.6])
    assert cost(run(curve), 0.5, "steps") == Cost(7, True)
    assert cost(run(curve), 0.5, "tokens") == Cost(70, True)
    assert cost(run(curve), 0.8, "steps") == Cost(7, False)


def test_steps_without_attempts_count_for_no_mean() -> None:
    assert smooth([None, 0.5, None, 1.0]) == pytest.approx([0, 0.5, 0.5, 0.75])


def test_a_ratio_of_seeds_is_their_geometric_mean_with_the_t_interval_of_the_logarithms() -> None:
    quick = seeds(run([1.0] * 5), run([0.0] * 8 + [1.0] * 9))  # after 1 and 11 steps
    slow = seeds(*[run([0.0] * 8 + [1.0] * 9)] * 2)  # after 11
    found = ratio(quick, slow, 0.5, "steps")
    assert found.value == pytest.approx((1 / 11) ** 0.5) and found.kind == "="
    half = 12.706 * np.log(11) / 2  # standard deviation log 11 / √2, two seeds
    low, high = np.exp([-np.log(11) / 2 - half, -np.log(11) / 2 + half])
    assert found.interval == pytest.approx((low, high)) and found.below_one is False
    three = ratio(*(seeds(*[run(s)] * 3) for s in ([1.0] * 5, [0.0] * 8 + [1.0] * 9)), 0.5, "steps")
    assert three.interval == pytest.approx((1 / 11, 1 / 11)) and three.below_one is True


def test_runs_of_other_seeds_have_the_ratio_of_their_mean_costs_with_a_bootstrap_interval() -> None:
    quick = seeds(run([1.0] * 5), run([0.0, *[1.0] * 9]))
    slow = [one | {"seed": 9 + i} for i, one in enumerate([run([0.0] * 8 + [1.0] * 9)] * 2)]
    found = ratio(quick, slow, 0.5, "steps")
    assert found.value == pytest.approx((1 + 3) / 2 / 11, abs=0.1) and found.kind == "="
    assert found.interval and found.interval[0] < found.value < found.interval[1]
    assert found.below_one is True


def test_a_run_that_never_gets_there_bounds_the_ratio() -> None:
    quick, never = seeds(*[run([1.0] * 3)] * 2), seeds(*[run([0.0] * 30)] * 2)
    bounded = ratio(quick, never, 0.5, "steps")
    assert bounded.kind == "<" and bounded.value == pytest.approx(1 / 30) and bounded.below_one
    assert ratio(never, quick, 0.5, "steps").kind == ">"
    assert ratio(never, quick, 0.5, "steps").below_one is False
    undecided = ratio(never, never, 0.5, "steps")
    assert undecided.kind == "?" and undecided.below_one is None


def test_one_seed_on_either_side_has_a_ratio_but_no_interval() -> None:
    quick, slow = (seeds(*[run(s)] * 2) for s in ([1.0] * 5, [0.0] * 8 + [1.0] * 9))
    for over, under in ((quick[:1], slow), (quick, slow[:1]), (quick[:1], slow[1:])):
        found = ratio(over, under, 0.5, "steps")
        assert found.value == pytest.approx(1 / 11) and found.interval is None
        assert found.below_one is None
    assert ratio(quick, slow, 0.5, "steps").below_one is True


def test_seeds_that_one_side_lacks_are_left_out() -> None:
    quick, slow = (seeds(*[run(s)] * 3) for s in ([1.0] * 5, [0.0] * 8 + [1.0] * 9))
    slow[0] = run([0.0] * 98 + [1.0] * 9) | {"seed": 0}
    assert ratio(quick[1:], slow, 0.5, "steps").value == pytest.approx(1 / 11)
    assert ratio(quick, slow, 0.5, "steps").value == pytest.approx((11 * 11 * 101) ** (-1 / 3))


def test_a_ratio_has_the_value_of_each_policy_and_of_each_seed_of_one() -> None:
    def run(seed: int, steps: int, policy: int) -> dict[str, object]:
        curve = {"tokens": [1] * steps, "success_base": [0.0] * (steps - 1) + [9.0]}
        return {"seed": seed, "policy": policy, "curve": curve}

    plain = [run(0, 10, 0), run(1, 10, 0), run(0, 10, 1)]
    ours = [run(0, 20, 0), run(1, 5, 0), run(0, 40, 1)]
    both = ratio(ours, plain, 0.5, "steps")
    assert both.policies == 2 and both.values == pytest.approx((1.0, 4.0))
    one = ratio(ours[:2], plain, 0.5, "steps")
    assert one.policies == 1 and one.values == pytest.approx((2.0, 0.5))


def test_the_ceiling_of_a_cosine_is_one_for_equal_halves_and_by_hand_for_others() -> None:
    assert ceiling(1.0) == 1.0
    assert ceiling(0.6) == pytest.approx(0.75**0.5)
    assert ceiling(-0.1) == ceiling(-1.0) == 0.0


def test_runs_are_paired_by_seed_machine_and_policy() -> None:
    ours: list[Run] = [{"seed": 1}, {"seed": 0}, {"seed": 2, "machine": "a"}, {"seed": 3}]
    theirs: list[Run] = [{"seed": 0, "policy": 0}, {"seed": 1}, {"seed": 2, "machine": "b"}]
    assert pairs(ours, [*theirs, {"seed": 3, "policy": 1}]) == [
        (ours[1], theirs[0]),
        (ours[0], theirs[1]),
    ]


def test_several_policies_are_the_unit_of_an_interval_and_one_is_not() -> None:
    twins = [({"seed": s, "policy": p}, {}) for p in (0, 1) for s in (0, 1)]
    values = np.array([1.0, 3.0, 5.0, 9.0])
    assert of_policies(twins, values).tolist() == [2.0, 7.0]
    assert of_policies([({"seed": s}, {}) for s in range(4)], values) is values
    machines = [({"seed": 0, "policy": 1, "machine": m}, {}) for m in "ab"]
    assert of_policies([*twins[:2], *machines], values).tolist() == [2.0, 5.0, 9.0]
    quick, slow = ([0.0] * late + [1.0] * 5 for late in (0, 10))
    ours = [run(quick) | {"seed": s, "policy": s} for s in (0, 1)]
    theirs = [run(slow) | {"seed": s, "policy": s} for s in (0, 1)]
    more = ([run(slow) | {"seed": 5, "policy": 0}], [run(slow) | {"seed": 5, "policy": 0}])
    found = ratio([*ours, *more[0]], [*theirs, *more[1]], 0.5, "steps")
    assert found.value == pytest.approx((1 / 13) ** (3 / 4))  # the first policy's is its root


def test_a_t_interval_by_hand_and_none_for_one_value() -> None:
    middle, half = t_interval(np.array([1.0, 2.0, 3.0]))
    assert middle == 2.0 and half == pytest.approx(4.303 / 3**0.5)
    assert t_interval(np.array([5.0])) == (5.0, None)


def test_a_bound_is_rounded_to_the_side_on_which_it_stays_true() -> None:
    assert f"{Ratio(0.1101, None, '<').rounded:.2f}" == "0.12"
    assert f"{Ratio(0.35 - 1e-12, None, '<').rounded:.2f}" == "0.35"
    assert f"{Ratio(2.9999, None, '>').rounded:.2f}" == "2.99"
    assert f"{Ratio(0.1151, None, '=').rounded:.2f}" == "0.12"
