"""The metrics of an evaluation: against slow definitions, as a report, as scalars, compared."""

import itertools
import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.evaluation.metrics import (
    bootstrap,
    by_task,
    compare,
    pass_at_k,
    report,
    scalars,
    wilson,
)
from learner.metrics.tags import check_tag
from tests.learner.evaluation.fakes import attempted, turn


def played(task, number=0, reward=0.0, *, steps=2, tokens=10, family="", **more):
    turns = tuple(turn("o", "a", tokens) for _ in range(steps))
    return attempted(task, number, family, reward, steps=turns, length=100, **more)


def some_attempts():
    """Two families, two tasks each, two attempts; rewards 1 0 / 0 0 and 1 1 / 1 0."""
    rewards = {"a0": (1, 0), "a1": (0, 0), "b0": (1, 1), "b1": (1, 0)}
    return [
        played(task, n, float(reward), family=task[0], steps=2 + n)
        for task, each in rewards.items()
        for n, reward in enumerate(each)
    ]


def test_metrics_are_means_over_tasks_with_intervals_and_by_family():
    found = report(some_attempts(), [2])
    every = found.all.estimates
    assert every["success"].mean == 0.5 and every["pass@2"].mean == 0.75
    assert found.families["a"].estimates["success"].mean == 0.25
    assert found.families["b"].estimates["pass@2"].mean == 1.0
    assert (every["steps"].mean, every["tokens"].mean, found.all.tasks) == (2.5, 25.0, 4)
    assert 0 < every["success"].low < 0.5 < every["success"].high < 1


def test_failed_attempts_earn_nothing_and_count_by_cause():
    attempts = [played("t", 0, 1.0), attempted("t", 1, cause="environment_hang")]
    found = report(attempts).all
    assert found.failed == {"environment_hang": 1}
    assert found.estimates["success"].mean == found.estimates["reward"].mean == 0.5
    assert found.estimates["steps"].mean == 2.0


def test_faults_that_attempts_survived_are_counted():
    assert report([played("t", faults=("scorer_ValueError",) * 2)]).all.faults == {
        "scorer_ValueError": 2
    }


def test_metrics_without_a_played_attempt_are_empty_and_not_an_error():
    found = report([attempted("t", 0, cause="x")])
    assert found.all.estimates["steps"].mean is None
    assert "nan" not in msgspec.json.encode(found).decode().lower()
    assert not math.isnan(found.all.estimates["success"].high)
    assert json.loads(msgspec.json.encode(report([])))["all"]["tasks"] == 0


def test_scalars_are_listed_tags_and_never_missing():
    attempts = [*some_attempts(), attempted("c", 0, "c & d", cause="x", faults=("y",))]
    found = scalars(report(attempts))
    for name in found:
        check_tag(f"eval/{name}")
    assert (found["tasks"], found["failed"], found["failed_x"], found["fault_y"]) == (5, 1, 1, 1)
    assert found["success_of_a"] == 0.25 and found["success_of_c_d"] == 0.0
    assert found["success"] == pytest.approx(0.4)
    assert found["success_low"] < found["success"] < found["success_high"]
    assert scalars(report([]))["success"] == 0.0
    assert "pass_at_2" in scalars(report(some_attempts(), [2]))


def test_the_exact_probability_is_a_metric_only_where_it_was_measured():
    def measured(task, probability, attempt=0):
        return attempted(task, attempt, scores={"exact": probability})

    here = [measured("a", 0.25), attempted("a", 1), measured("b", 0.5), attempted("c", cause="x")]
    found = report(here)
    assert found.all.estimates["exact"].mean == 0.375
    assert "exact" not in report([attempted("a", 0)]).all.estimates
    assert scalars(found)["exact"] == 0.375 and "exact" not in scalars(report([attempted("a")]))
    there = [measured("a", 0.25), measured("b", 0.25), measured("c", 1.0)]
    compared = compare(here, there)["exact"]
    assert (compared.better, compared.worse, compared.same) == (1, 0, 1)
    assert compared.difference.mean == 0.125
    assert "exact" not in compare(here, [attempted(name) for name in "abc"])


def test_a_report_does_not_depend_on_the_order_in_which_tasks_were_finished():
    attempts = [attempted(f"t{n}", 0, reward=0.1 * (n % 7)) for n in range(40)]
    assert report(attempts) == report(attempts[::-1])


def test_further_temperatures_have_tags_of_their_own():
    greedy = report([attempted("a", reward=1.0, family="f")])
    found = scalars(report([attempted("a", family="f")]), {0.0: greedy, 0.25: greedy})
    for name in found:
        check_tag(f"eval/{name}")
    assert (found["success"], found["temperature_0/success"]) == (0.0, 1.0)
    assert found["temperature_0.25/success_of_f"] == 1.0


def test_attempts_are_grouped_by_task_in_their_order():
    attempts = [played("b"), played("a"), played("b", 1)]
    assert [[one.key for one in each] for each in by_task(attempts).values()] == [
        [("b", 0), ("b", 1)],
        [("a", 0)],
    ]


def rewarded(rewards):
    return [attempted(f"t{n}", 0, reward=reward) for n, reward in enumerate(rewards)]


def test_tasks_are_counted_by_their_difference_and_the_interval_is_paired():
    here, there = rewarded([1.0, 1.0, 0.0, 0.5, 0.0]), rewarded([0.0, 1.0, 0.0, 0.2, 0.1])
    found = compare(here, there)
    assert (found["success"].better, found["success"].worse, found["success"].same) == (1, 0, 4)
    assert (found["reward"].better, found["reward"].worse, found["reward"].same) == (2, 1, 2)
    assert found["reward"].difference.mean == pytest.approx(0.24)
    # every task is 0.1 better: unpaired intervals of such rewards would be wide
    small = compare(rewarded([0.1, 0.6, 0.9]), rewarded([0.0, 0.5, 0.8]))["reward"].difference
    assert small.low == pytest.approx(0.1) and small.high == pytest.approx(0.1)


def test_the_means_of_a_task_are_compared_whatever_the_number_of_its_attempts():
    here = [*rewarded([1.0]), attempted("t0", 1, cause="environment_hang")]
    assert compare(here, rewarded([0.0]))["success"].difference.mean == 0.5


counts = st.integers(1, 9).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))
)


@given(counts)
def test_pass_at_k_is_the_share_of_k_subsets_that_hold_a_success(nck):
    n, c, k = nck
    outcomes = [True] * c + [False] * (n - c)
    subsets = list(itertools.combinations(outcomes, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@given(counts)
def test_pass_at_k_grows_with_k_and_pass_at_1_is_the_share_of_successes(nck):
    n, c, k = nck
    assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    assert k == n or pass_at_k(n, c, k + 1) >= pass_at_k(n, c, k)


def test_wilson_gives_published_intervals():
    def of(successes, count):
        return wilson([1.0] * successes + [0.0] * (count - successes))

    assert of(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert of(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert of(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998
    assert of(0, 24)[0] == 0.0 and of(24, 24)[1] == 1.0


@given(st.lists(st.floats(0, 1), min_size=1))
def test_an_interval_contains_its_mean_and_stays_between_0_and_1(values):
    low, high = wilson(values)
    mean = sum(values) / len(values)
    assert -1e-12 <= low <= mean + 1e-12 and mean - 1e-12 <= high <= 1.0 + 1e-12


def test_the_bootstrap_is_reproducible_and_near_the_normal_interval():
    values = [float(i % 10) for i in range(1000)]
    assert bootstrap(values) == bootstrap(values)
    spread = 1.96 * math.sqrt(8.25 / 1000)
    assert bootstrap(values) == pytest.approx((4.5 - spread, 4.5 + spread), abs=0.03)
    assert bootstrap([2.0]) == (2.0, 2.0)
