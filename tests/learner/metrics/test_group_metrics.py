"""Figures of a step, against groups whose figures can be told by looking."""

import pytest
from msgspec.structs import replace

from buffer import BufferStats
from learner.metrics.group_metrics import (
    buffer_figures,
    group_figures,
    mismatched_fingerprints,
    staleness_figures,
    unstamped,
)
from r3l.records import ReflectionRecord
from tests.learner.groups import explore_group


def test_group_figures_count_what_reflections_led_to() -> None:
    group = explore_group(base_rewards=(0.0, 1.0), retry_rewards=(1.0, None), pivot=2)
    thoughts = {
        ("distilled", 0): ReflectionRecord("{}", outcome="failure", pivot=2, tokens=30),
        ("distilled", 1): ReflectionRecord("nonsense", cause="not_json", tokens=5),
    }
    results = tuple(replace(r, reflection=thoughts.get((r.role, r.slot))) for r in group.results)
    figures = group_figures([replace(group, results=results)])
    assert figures["group/success_base"] == 0.5 and figures["group/success_retry"] == 1.0
    assert figures["group/trigger_rate"] == 0.5 and figures["group/improvement_rate"] == 1.0
    assert figures["group/reflection_valid"] == 0.5
    assert figures["group/reflection_not_json"] == 0.5
    assert figures["group/pivot_mean"] == 2.0 and figures["group/no_contrast"] == 0.0
    # Two attempts of 4 steps, a retry of 2, at 4 tokens a step, and two reflections.
    assert figures["group/generated_tokens"] == 4 * (4 + 4 + 2) + 35


def test_a_retry_that_was_called_for_and_failed_counts_as_triggered() -> None:
    group = explore_group((0.0, 0.0), (None, None))
    *_, kept, lost = group.results
    kept = replace(kept, reflection=ReflectionRecord("{}", outcome="success"))
    thought = ReflectionRecord("{}", outcome="failure", pivot=1)
    lost = replace(lost, status="failed", cause="replay_diverged", reflection=thought)
    figures = group_figures([replace(group, results=(*group.results[:2], kept, lost))])
    assert figures["group/trigger_rate"] == 0.5 and figures["group/failed_replay_diverged"] == 1.0


def test_a_correction_is_counted_as_verified_by_the_rule_of_the_run() -> None:
    groups = [explore_group((0.0,), (0.5,))]
    assert group_figures(groups)["group/verified_rate"] == 0.0
    assert group_figures(groups, requires_success=False)["group/verified_rate"] == 1.0


def test_a_group_with_equal_rewards_has_no_contrast() -> None:
    figures = group_figures([explore_group((0.0, 0.0), (0.0, None))])
    assert figures["group/no_contrast"] == 1.0 and figures["group/reward_std"] == 0.0


def test_staleness_is_the_age_of_the_oldest_step_at_the_draw() -> None:
    group = replace(explore_group((0.0,), (1.0,)), times={"complete": 10.0, "drawn": 12.5})
    figures = staleness_figures([group], version=3)
    assert figures["staleness/max"] == 3.0 and figures["staleness/queue_s"] == 2.5


def test_figures_without_data_are_left_out_rather_than_not_a_number() -> None:
    figures = group_figures([explore_group((0.0,), ())])
    assert "group/success_retry" not in figures and "group/pivot_mean" not in figures


def test_two_engines_with_other_weights_of_one_version_raise_the_alarm() -> None:
    seen: dict[int, str] = {}
    first = replace(explore_group((0.0,), ()), fingerprints={4: "aa"}, actor="a")
    second = replace(explore_group((0.0,), ()), fingerprints={4: "bb"}, actor="b")
    assert mismatched_fingerprints([first, first], seen) == []
    [alarm] = mismatched_fingerprints([second], seen)
    assert "version 4" in alarm and "aa" in alarm and "bb" in alarm


def test_attempts_without_the_hash_of_their_newest_weights_are_counted() -> None:
    group = explore_group((0.0, 1.0), (1.0,))  # all of them sampled by version 0
    assert unstamped([group]) == 3
    assert unstamped([replace(group, fingerprints={0: "aa"}), group]) == 3
    assert unstamped([replace(group, fingerprints={1: "aa"})]) == 3


@pytest.mark.parametrize("cause", ["environment_OSError", "replay_diverged"])
def test_failed_slots_are_counted_by_cause(cause: str) -> None:
    group = explore_group((0.0,), ())
    failed = replace(group.results[0], slot=1, status="failed", cause=cause, trajectory=None)
    figures = group_figures([replace(group, results=(*group.results, failed))])
    assert figures[f"group/failed_{cause}"] == 1.0


def test_troubles_that_attempts_outlived_are_counted_by_name() -> None:
    group = explore_group((0.0,), ())
    (result,) = group.results
    assert result.trajectory is not None
    troubled = replace(result.trajectory, faults=("scorer_ValueError",) * 2)
    figures = group_figures([replace(group, results=(replace(result, trajectory=troubled),))])
    assert figures["group/fault_scorer_ValueError"] == 2.0


def test_losses_are_shown_by_cause_and_by_role_with_cause() -> None:
    stats = BufferStats(
        drops={"stale": 2}, slot_drops={"base/stale": 3, "distilled/engine": 1}, quorums=4
    )
    figures = buffer_figures(stats, version=0)
    assert figures["buffer/drop_stale"] == 2 and figures["buffer/quorums"] == 4
    assert figures["buffer/drop_base_stale"] == 3
    assert figures["buffer/drop_distilled_engine"] == 1


def test_totals_are_of_all_actors_that_ever_were_and_the_rest_of_those_that_are_there() -> None:
    here = {"seen_s": 1.0, "requests_running": 5.0, "idle_share": 0.5, "weight_version": 7.0}
    gone = {"seen_s": 99.0, "requests_running": 9.0, "idle_share": 0.1, "weight_version": 2.0}
    stats = BufferStats(
        actors={
            "a.1": gone | {"generated_tokens": 100.0, "weights_failed_checksum": 1.0},
            "a.2": here | {"generated_tokens": 10.0},
            "a.3": here | {"generated_tokens": 1.0, "requests_running": 2.0},
        }
    )
    figures = buffer_figures(stats, version=8)
    assert figures["actor/generated_tokens"] == 111 and figures["weights/failed_checksum"] == 1
    assert figures["actor/requests_running"] == 7 and figures["actor/idle_share"] == 0.5
    assert figures["weights/version_lag"] == 1
