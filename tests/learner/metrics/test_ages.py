"""What makes groups stale."""

import numpy as np
import pytest
from msgspec.structs import replace

from learner.metrics import ages
from learner.metrics.ages import CommitTimes, age_by_cause, cause_metrics
from learner.metrics.group_metrics import staleness_metrics
from r3l.records import Group
from tests.learner.fakes import explore_group


def commits(*times: float, first: int = 0) -> CommitTimes:
    made = CommitTimes()
    for version, at in enumerate(times, first):
        made.add(version, at)
    return made


def group(base: tuple[int, int], retry: tuple[int, int], complete: float) -> Group:
    """A group whose base attempt and retry were sampled by versions from … to."""
    played = explore_group((0.0,), (1.0,))
    results = []
    for result, (first, last) in zip(played.results, (base, retry), strict=True):
        assert result.trajectory is not None
        oldest = np.full(4, first, dtype=np.int32)
        newest = np.array([first, first, first, last], dtype=np.int32)  # new weights in the last
        sampled = replace(result.trajectory, step_versions=oldest, step_newest_versions=newest)
        results.append(replace(result, trajectory=sampled))
    times = {"leased": 0.0, "filling": complete - 3.0, "complete": complete}
    return replace(played, results=tuple(results), times=times)


def test_a_group_ages_while_it_is_sampled_retried_submitted_and_kept() -> None:
    reached = commits(0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0)
    one = group((1, 2), (1, 4), complete=55.0)  # completed when the learner was at version 5
    assert age_by_cause(one, 7, reached) == [1, 2, 1, 2]


def test_the_causes_add_up_to_the_staleness() -> None:
    reached = commits(*(float(10 * version) for version in range(10)))
    groups = [group((1, 2), (1, 4), 55.0), group((6, 6), (6, 6), 65.0), group((3, 5), (3, 5), 90)]
    metrics = cause_metrics(groups, 9, reached)
    total = sum(metrics[f"staleness/{cause}"] for cause in ages.CAUSES)
    assert total == pytest.approx(staleness_metrics(groups, 9)["staleness/mean"])
    assert metrics["staleness/spread_s"] == 3.0


def test_clocks_that_differ_give_no_negative_age() -> None:
    reached = commits(0.0, 10.0, 20.0)
    assert age_by_cause(group((2, 2), (2, 2), complete=5.0), 2, reached) == [0, 0, 0, 0]
    assert age_by_cause(group((0, 0), (0, 0), complete=99.0), 1, reached) == [0, 0, 1, 0]


def test_a_group_completed_before_the_learner_started_has_no_causes() -> None:
    reached = commits(100.0, 110.0, first=7)
    assert reached.version(99.0) is None and reached.version(105.0) == 7
    assert age_by_cause(group((5, 5), (5, 5), complete=99.0), 8, reached) is None
    assert "staleness/from_lag" not in cause_metrics([group((5, 5), (5, 5), 99.0)], 8, reached)


def test_old_commits_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ages, "REMEMBERED", 2)
    reached = commits(0.0, 10.0, 20.0, 30.0)
    assert [reached.version(at) for at in (15.0, 25.0, 35.0)] == [None, 2, 3]
