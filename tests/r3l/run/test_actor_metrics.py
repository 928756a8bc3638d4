"""The record of an actor's metrics, as numbers and back, and over several actors."""

from collections import Counter

from r3l.run.actor_metrics import ActorMetrics, combined, described_fields


def test_a_record_is_the_same_after_its_way_as_numbers() -> None:
    record = ActorMetrics(requests_running=3, paused_s=1.5, taken_over=2)
    record.refused["too_large"] += 1
    record.results.update({"base_done": 4, "distilled_failed": 1})
    numbers = record.numbers()
    assert numbers["refused_too_large"] == 1.0 and numbers["results_base_done"] == 4.0
    assert ActorMetrics.read(numbers | {"seen_s": 2.0, "foreign": 1.0}) == record


def test_totals_add_up_over_all_actors_and_gauges_over_those_present() -> None:
    here = ActorMetrics(idle_share=0.2, requests_running=4, groups=1, refused=Counter(bad=1))
    other = ActorMetrics(idle_share=0.4, requests_running=2, groups=2)
    gone = ActorMetrics(idle_share=0.9, requests_running=9, groups=5, refused=Counter(bad=2))
    metrics = combined([here, other, gone], [here, other])
    assert metrics["actor/idle_share"] == (0.2 + 0.4) / 2
    assert metrics["actor/requests_running"] == 6 and metrics["actor/groups"] == 8
    assert metrics["actor/refused_bad"] == 3
    assert combined([], []) == {}


def test_only_counters_have_a_family_of_tags() -> None:
    record = ActorMetrics()
    for name, shown in described_fields():
        assert isinstance(getattr(record, name), Counter) == ("<" in shown.tag), name
