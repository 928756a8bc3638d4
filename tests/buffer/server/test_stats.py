"""The metrics of the service and of its actors."""

import math
from collections import Counter

import pytest

from buffer.server import stats
from buffer.wire.operations import NAME_LIMIT
from r3l.codec import encode
from r3l.errors import RecordError
from r3l.records import GROUP_STATES, GroupPlan
from r3l.run.settings.buffer import RetentionConfig


def test_metrics_are_bounded_per_actor_and_the_longest_silent_actor_is_forgotten():
    metrics = stats.ActorReports()
    for number in range(stats.ACTORS_LIMIT):
        metrics.update(f"a{number}", {})
    for first in (0, 9):
        metrics.update("a0", {f"figure{first + n}": 1.0 for n in range(stats.METRICS_LIMIT)})
    metrics.update("new", {})
    report = metrics.report()
    assert len(report) == stats.ACTORS_LIMIT and "a1" not in report
    assert len(report["a0"]) == stats.METRICS_LIMIT + 1 and "figure8" not in report["a0"]


def test_the_metrics_of_all_actors_fit_in_a_reply(desk):
    """Of as many actors as may be, with as many metrics as long as may be."""
    actors = stats.ActorReports()
    names = [f"{n:0{NAME_LIMIT}}" for n in range(stats.METRICS_LIMIT)]
    for number in range(1000):
        actors.update(f"a{number}", dict.fromkeys(names, 1.0))
    found = desk.do(lambda work: stats.collect(work, desk.store, actors, Counter()))
    assert len(encode(found)) > stats.ACTORS_BYTES / 2
    assert "a0" not in found.actors and "a999" in found.actors
    for number in range(1000):  # the other ones are silent, and are forgotten one by one
        actors.update("a999", {f"figure{number}": 1.0})
        actors.update(f"b{number}", {"é": 1.0})
    assert {"a999", "b0", "b999"} <= actors.report().keys()


def test_metrics_that_are_too_many_or_cannot_be_shown_are_refused_and_nan_is_counted():
    metrics = stats.ActorReports()
    many = {f"figure{n}": 1.0 for n in range(stats.METRICS_LIMIT + 1)}
    wrong = [(many, "sends 257 metrics"), ({"": 1.0}, "1 to"), ({"x" * 201: 1.0}, "1 to 200")]
    for given, reason in [*wrong, ({"a\nb": 1.0}, "printable")]:
        with pytest.raises(RecordError, match=reason):
            metrics.update("a0", given)
    assert metrics.report() == {}
    odd = {"nan": math.nan, "far": math.inf, "near": -math.inf, "good": 1.0}
    assert metrics.update("a0", odd) == 3
    assert metrics.report()["a0"].keys() == {"good", "seen_s"}


@pytest.mark.system
def test_evaluation_progress_is_shown_by_tag(client, tasks, done):
    client.add_tasks(tasks(3, "e"), purpose="eval", tag="step-0")
    group = client.lease("a", 0, GroupPlan(8)).group_id
    client.put(group, "a", done(reward=1.0))
    assert client.stats().eval_progress == {"step-0": (1, 3)}
    assert [g.group_id for g in client.query(purpose="eval", tag="step-0", state="complete")] == [
        group
    ]


def test_the_metrics_count_what_happened_to_groups_results_and_requests(desk, tasks, done):
    desk.add(tasks(9))
    for _ in range(2):
        desk.complete()
    desk.commit(desk.draw(2).draw_id, 1)
    desk.evict(RetentionConfig(groups=1, grace_s=0.0))
    failed = desk.lease(version=1).group_id
    desk.resolve(failed, 0, "env")
    desk.lease(version=1)
    actors, refused = stats.ActorReports(), Counter(undelivered=2, NotFound=3, LeaseLost=0)
    found = desk.do(lambda work: stats.collect(work, desk.store, actors, refused))
    assert found.train == dict.fromkeys(GROUP_STATES, 0) | {"leased": 1, "trained": 1, "expired": 1}
    assert (found.made, found.evicted, found.trained, found.leases, found.puts) == (4, 1, 2, 4, 3)
    assert (found.draws, found.drawn_groups, found.learner_version) == (1, 2, 1)
    assert found.drops == {"no_trajectories": 1} and found.slot_drops == {"base/env": 1}
    assert found.undelivered == 2 and found.refused == {"NotFound": 3}
    assert found.tasks == 9 and found.disk_bytes > 0
