"""Rates and shares of the actors' recent counts."""

from collections import Counter

from learner.metrics.buffer_metrics import actor_metrics
from learner.metrics.recent_counts import RATES_S, SHARE_STEPS, RecentCounts
from learner.metrics.tags import check_tag
from r3l.run.actor_metrics import ActorMetrics


def tokens(sampled: float, trained: float) -> dict[str, float]:
    return {"agent/tokens_sampled": sampled, "agent/tokens_trained": trained}


def test_a_rate_covers_the_last_step_or_the_last_steps_that_took_five_seconds() -> None:
    recent = RecentCounts(0.0, {"actor/generated_tokens": 50.0})
    rates = [
        recent.add(now, {"actor/generated_tokens": total})["actor/tokens_per_s"]
        for now, total in ((1.0, 150.0), (5.0, 550.0), (20.0, 1300.0), (21.0, 1310.0))
    ]
    assert rates == [100.0, 100.0, 50.0, (1310 - 550) / 16]
    assert recent.add(30.0, {"actor/generated_tokens": 0.0})["actor/tokens_per_s"] == 0.0
    assert recent.add(31.0, {}) == {}


def test_a_share_is_of_what_was_recorded_in_the_last_steps_alone() -> None:
    """After an hour in which everything was trained, a step in which nothing is shows."""
    total, trained = 1e6, 1e6
    recent, shares = RecentCounts(0.0, tokens(total, trained)), list[float]()
    for step in range(1, 3 * SHARE_STEPS):
        total += 100.0
        trained += 100.0 if step <= SHARE_STEPS else 0.0
        shares.append(recent.add(10.0 * step, tokens(total, trained))["agent/trained_share"])
    assert shares[:SHARE_STEPS] == [1.0] * SHARE_STEPS
    assert shares[SHARE_STEPS : 2 * SHARE_STEPS] == [0.8, 0.6, 0.4, 0.2, 0.0]


def test_short_steps_are_joined_until_they_took_five_seconds() -> None:
    recent = RecentCounts(0.0, tokens(0.0, 0.0))
    for step in range(1, 50):  # a report of the actors every two seconds
        reports = step // 20
        found = recent.add(0.1 * step, tokens(100.0 * reports, 50.0 * reports))
    assert 0.1 * step < RATES_S and found["agent/trained_share"] == 0.5


def test_a_share_is_left_out_if_nothing_was_recorded_or_counts_begin_again() -> None:
    recent = RecentCounts(0.0, tokens(100.0, 10.0))
    assert recent.add(10.0, tokens(100.0, 10.0)) == {}
    assert recent.add(20.0, tokens(40.0, 5.0)) == {}  # the buffer has restarted
    assert recent.add(30.0, tokens(140.0, 5.0)) == {}  # an actor has not reported yet


def test_shares_of_agents_are_of_all_actors_counts() -> None:
    one = ActorMetrics(tokens=Counter(sampled=10, trained=9), agent=Counter(shapes_asked=4))
    two = ActorMetrics(tokens=Counter(sampled=30, trained=1), agent=Counter(shapes_missed=1))
    totals = actor_metrics({"a": one.numbers(), "b": two.numbers()}, version=0)
    metrics = RecentCounts(0.0, {}).add(1.0, totals)
    assert metrics["agent/trained_share"] == 0.25 and metrics["agent/shapes_missed_share"] == 0.25
    none = actor_metrics({"a": ActorMetrics().numbers()}, version=0)
    assert "agent/trained_share" not in RecentCounts(0.0, {}).add(1.0, none)
    for tag in metrics:
        check_tag(tag)
