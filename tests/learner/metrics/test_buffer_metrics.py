"""Metrics of the buffer service and of the actors that report to it."""

from collections import Counter

from buffer import BufferStats
from learner.metrics.buffer_metrics import actor_metrics, buffer_metrics
from r3l.run.actor_metrics import ActorMetrics


def test_expired_groups_are_shown_by_cause_and_slots_by_role_and_cause() -> None:
    stats = BufferStats(
        drops={"stale": 2},
        stale_share=0.25,
        slot_drops={"base/stale": 3, "distilled/engine": 1},
        partial_dropped={"damaged": 1},
        algorithm_failed={"plan": 4},
    )
    metrics = buffer_metrics(stats)
    assert metrics["buffer/expired_stale"] == 2 and metrics["buffer/stale_share"] == 0.25
    assert metrics["buffer/slots_base_stale"] == 3
    assert metrics["buffer/partial_dropped_damaged"] == 1
    assert metrics["buffer/algorithm_failed_plan"] == 4
    assert metrics["buffer/slots_distilled_engine"] == 1


def test_totals_count_every_actor_that_ever_reported_and_other_metrics_the_present_ones() -> None:
    here = ActorMetrics(requests_running=5, idle_share=0.5, weight_version=7, generated_tokens=10)
    gone = ActorMetrics(requests_running=9, idle_share=0.1, weight_version=2, generated_tokens=100)
    gone.weights_failed = Counter(checksum=1)
    actors = {
        "a.1": gone.numbers() | {"seen_s": 99.0},
        "a.2": here.numbers() | {"seen_s": 1.0},
        "a.3": here.numbers() | {"seen_s": 1.0, "requests_running": 2.0},
    }
    metrics = actor_metrics(actors, version=8)
    assert metrics["actor/generated_tokens"] == 120 and metrics["weights/failed_checksum"] == 1
    assert metrics["actor/requests_running"] == 7 and metrics["actor/idle_share"] == 0.5
    assert metrics["weights/version_lag"] == 1


def test_cache_hits_are_shares_of_all_actors_tokens() -> None:
    busy = ActorMetrics(prompt_tokens=90, cached_tokens=45)
    idle = ActorMetrics(prompt_tokens=10, cached_tokens=5)
    metrics = actor_metrics({"a": busy.numbers(), "b": idle.numbers()}, version=0)
    assert metrics["actor/prefix_hit"] == 0.5
    assert "actor/prefix_hit" not in actor_metrics({"a": ActorMetrics().numbers()}, version=0)
