"""Metrics of a step, against groups whose metrics can be told by looking."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from learner.metrics.group_metrics import (
    group_metrics,
    mismatched_fingerprints,
    selection_metrics,
    staleness_metrics,
    success_by_environment,
    time_metrics,
    unread_reflection,
)
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.algorithms.published.dapo import DAPO
from r3l.algorithms.published.r3 import R3
from r3l.algorithms.published.raft import RAFT
from r3l.algorithms.r3l import R3L
from r3l.algorithms.rows import IMITATION
from r3l.records import Extra, Group, GroupPlan, Origin, Recalled, Shown, SlotResult, done
from r3l.run.config import load
from tests.r3l.training.fakes import explore_group, group_of, thought, trajectory


def test_group_metrics_count_what_reflections_led_to() -> None:
    group = explore_group(base_rewards=(0.0, 1.0), retry_rewards=(1.0, None), pivot=2)
    unread = thought(1, text="nonsense", outcome="", cause="not_json")
    metrics = group_metrics([replace(group, reflections=(*group.reflections, unread))])
    assert metrics["group/success_base"] == 0.5 and metrics["group/success_retry"] == 1.0
    assert metrics["group/trigger_rate"] == 0.5 and metrics["group/improvement_rate"] == 1.0
    assert metrics["group/reflection_valid"] == 0.5
    assert metrics["group/reflection_not_json"] == 0.5
    assert metrics["group/pivot_relative"] == 0.5 and metrics["group/no_contrast"] == 0.0
    # The retry of attempt 0 earned 1, as the other attempt did; one group has no standard error.
    assert metrics["group/guidance_gain"] == metrics["group/guidance_gain_se"] == 0.0
    assert metrics["group/guidance_slots"] == 1.0
    assert (metrics["group/attempts"], metrics["group/retries"]) == (3.0, 1.0)
    assert metrics["group/successes"] == 2.0  # attempt 1 and the retry of attempt 0
    # Two attempts of 4 steps, a retry of 2, at 4 tokens a step, and two reflections.
    assert metrics["group/generated_tokens"] == 4 * (4 + 4 + 2) + 2 * 16


def test_successes_are_told_apart_by_environment_if_there_are_several() -> None:
    won, lost = explore_group((1.0, 1.0), (None, None)), explore_group((0.0, 1.0), (None, None))
    assert success_by_environment([won, lost]) == {won.task.env: 0.75}
    assert "group/success_base_other" not in group_metrics([won, other(lost)])
    metrics = group_metrics([won, other(lost)], several=True)
    assert metrics[f"group/success_base_{won.task.env}"] == 1.0
    assert metrics["group/success_base_other"] == 0.5
    alone = group_metrics([other(lost)], several=True)
    assert alone["group/success_base_other"] == 0.5


def other(group: Group) -> Group:
    return replace(group, task=replace(group.task, env="other"))


def test_a_failed_retry_counts_as_triggered() -> None:
    group = explore_group((0.0, 0.0), (None, None))
    *bases, kept, lost = group.results
    lost = replace(lost, status="failed", cause="replay_diverged")
    thoughts = (thought(0, outcome="success"), thought(1))
    metrics = group_metrics([group_of(*bases, kept, lost, reflections=thoughts)])
    assert metrics["group/trigger_rate"] == 0.5 and metrics["group/failed_replay_diverged"] == 1.0


def test_a_correction_is_counted_as_verified_by_the_rule_of_the_run() -> None:
    groups = [explore_group((0.0,), (0.5,))]
    assert group_metrics(groups)["group/verified_rate"] == 0.0
    lenient = R3L(verified_requires_success=False)
    assert group_metrics(groups, lenient)["group/verified_rate"] == 1.0


def test_an_algorithm_brings_metrics_of_its_own() -> None:
    class Counting(Algorithm):
        def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
            return super().metrics(groups) | {"group/seen": len(groups), "group/none": float("nan")}

    metrics = group_metrics([explore_group((0.0,), ())], Counting())
    assert metrics["group/seen"] == 1 and "group/none" not in metrics


def test_a_group_with_equal_rewards_has_no_contrast() -> None:
    metrics = group_metrics([explore_group((0.0, 0.0), (0.0, None))])
    assert metrics["group/no_contrast"] == 1.0 and metrics["group/reward_std"] == 0.0


def test_attempts_that_the_algorithm_drops_are_counted() -> None:
    def group(name: str, *rewards: float) -> Group:
        results = [done(trajectory(slot, reward)) for slot, reward in enumerate(rewards)]
        failed = SlotResult(len(results), "failed", cause="env")
        return group_of(*results, failed, group_id=name)

    won, flat, empty = group("a", 0.0, 1.0), group("b", 0.0, 0.0), group("c")
    joins = Recalled("b", "z", trajectory(0, 1.0))
    batch = Batch([won, flat, empty], recalled=[joins], replayed=["x"])
    for name, share in {"raft": 0.25, "grpo": 0.0, "arpo": 0.25}.items():
        algorithm = load(None, [f"algorithm={name}"]).algorithm
        assert selection_metrics(batch, [], algorithm) == {"group/dropped": share}
    again = Batch([won, flat], replayed=["b"])
    assert selection_metrics(again, [], RAFT()) == {"group/dropped": 0.5}
    # A group that was replaced is not trained on at all.
    assert selection_metrics(Batch([won]), [flat], DAPO()) == {"group/dropped": 0.5}
    assert selection_metrics(Batch([empty]), [], DAPO()) == {}


def test_staleness_is_the_age_of_the_oldest_step_at_the_draw() -> None:
    group = explore_group((0.0,), (1.0,))
    assert staleness_metrics([group], version=3)["staleness/max"] == 3.0


def test_the_time_of_a_phase_is_told_where_it_is_known() -> None:
    group = replace(explore_group((0.0,), (1.0,)), times={"complete": 10.0, "drawn": 12.5})
    metrics = time_metrics([group])
    assert metrics["time/queue_s"] == 2.5
    assert "time/spread_s" not in metrics, "all its results came at once"
    slow = replace(group, times={"filling": 7.0, "complete": 10.0, "drawn": 12.5})
    assert time_metrics([group, slow])["time/spread_s"] == 3.0


def test_auxiliary_samples_that_a_limit_leaves_out_are_counted() -> None:
    batch = Batch([explore_group((0.0, 0.0), (1.0, 1.0), pivot=1)], version=4)
    for share, count in ((None, 0), (0.5, 2), (0.1, 4)):
        algorithm = R3L(group_size=4, sft_share=share)
        assert selection_metrics(batch, [], algorithm)["group/aux_left_out"] == count
        kept = [row for row in algorithm.rows(batch) if row.loss == IMITATION]
        assert len(kept) == 4 - count
    assert "group/aux_left_out" not in selection_metrics(batch, [], RAFT())


def test_metrics_without_data_are_left_out() -> None:
    metrics = group_metrics([explore_group((0.0,), ())])
    assert "group/guidance_slots" not in metrics
    assert "group/success_retry" not in metrics and "group/pivot_relative" not in metrics


def test_an_unread_reflection_is_shown_only_if_the_step_has_no_other() -> None:
    good = replace(explore_group((0.0,), ()), reflections=(thought(0),))
    bad = replace(good, reflections=(thought(0, text="Well, I think\nthat", cause="not_json"),))
    assert unread_reflection([good]) == unread_reflection([good, bad]) == ""
    assert unread_reflection([bad]) == r"'Well, I think\nthat'"


def test_two_engines_with_other_weights_of_one_version_raise_the_alarm() -> None:
    seen: dict[int, str] = {}
    first = replace(explore_group((0.0,), ()), fingerprints={4: "aa"}, actor="a")
    second = replace(explore_group((0.0,), ()), fingerprints={4: "bb"}, actor="b")
    assert mismatched_fingerprints([first, first], seen) == []
    [alarm] = mismatched_fingerprints([second], seen)
    assert "version 4" in alarm and "aa" in alarm and "bb" in alarm


@pytest.mark.parametrize("cause", ["environment_OSError", "replay_diverged"])
def test_failed_slots_are_counted_by_cause(cause: str) -> None:
    group = explore_group((0.0,), ())
    failed = SlotResult(1, "failed", cause=cause)
    metrics = group_metrics([replace(group, results=(*group.results, failed))])
    assert metrics[f"group/failed_{cause}"] == 1.0


def test_faults_that_attempts_survived_are_counted_by_name() -> None:
    group = explore_group((0.0,), ())
    (result,) = group.results
    assert result.trajectory is not None
    troubled = replace(result.trajectory, faults=("scorer_ValueError",) * 2)
    metrics = group_metrics([replace(group, results=(replace(result, trajectory=troubled),))])
    assert metrics["group/fault_scorer_ValueError"] == 2.0


def test_parts_of_the_reward_are_means_over_base_attempts() -> None:
    group = explore_group((0.0, 1.0), (1.0, None))
    first, second, *others = group.results
    assert first.trajectory is not None
    told = replace(
        first,
        trajectory=replace(
            first.trajectory, extra=Extra(reward_parts={"format": 0.5, "answer": 1.0})
        ),
    )
    metrics = group_metrics([replace(group, results=(told, second, *others))])
    assert (metrics["group/part_format"], metrics["group/part_answer"]) == (0.25, 0.5)


def test_attempts_that_start_inside_stored_ones_are_not_counted_as_first_attempts() -> None:
    group = explore_group((0.0, 1.0), (None, None))
    last = replace(group.trajectories[1], pivot=1, origin=Origin("g0", 1, 1))
    results = [done(last) if r.slot == last.slot else r for r in group.results]
    metrics = group_metrics([replace(group, results=tuple(results))])
    assert metrics["group/success_base"] == 0.0 and metrics["group/success_started"] == 1.0
    assert metrics["group/started"] == 1.0
    assert metrics["group/start_relative"] == pytest.approx(1 / last.num_steps)
    assert not {"group/started", "group/start_relative"} & {*group_metrics([group])}


def test_groups_whose_retries_follow_only_failures_have_no_guidance_gain() -> None:
    group = explore_group((0.0, 0.0), (1.0, 1.0))
    assert group_metrics([group])["group/guidance_gain"] == 1.0
    unsolved = group_metrics([replace(group, plan=replace(group.plan, kind="unsolved"))])
    assert not [name for name in unsolved if "guidance" in name]
    assert unsolved["group/success_retry"] == unsolved["group/improvement_rate"] == 1.0


def cut(group: Group) -> Group:
    """The group, if its environment had ended no attempt."""
    results = [
        done(replace(r.trajectory, finish="step_limit")) if r.trajectory else r
        for r in group.results
    ]
    return replace(group, results=tuple(results))


def test_attempts_with_a_context_are_not_counted_as_first_attempts() -> None:
    group = explore_group((0.0, 1.0), (None, None))
    shown = Shown(np.arange(5, dtype=np.int32), 0, 12)
    results = [done(replace(t, shown=shown)) if t.slot else done(t) for t in group.trajectories]
    metrics = group_metrics([replace(group, results=tuple(results))])
    assert metrics["group/success_base"] == 0.0 and metrics["group/success_context"] == 1.0
    assert "group/success_context" not in group_metrics([group])
    retried = explore_group((0.0,), (1.0,))
    first, retry = retried.trajectories
    results = [done(first), done(replace(retry, shown=shown))]
    assert "group/success_context" not in group_metrics([replace(retried, results=tuple(results))])


def test_the_parts_of_r3_are_counted_from_the_first_step_on() -> None:
    groups = [
        explore_group(rewards, (), group_id=f"g{i}")
        for i, rewards in enumerate([(0.0, 0.0, 0.0), (0.0, 0.0), (0.0, 1.0), (0.0,)])
    ]
    none = {"group/reflecting": 0.0, "group/ranked": 0.0}
    assert R3().metrics(groups) == R3().metrics([]) == none
    reflecting = replace(cut(groups[1]), plan=GroupPlan(2, "reflecting"))
    found = [cut(groups[0]), reflecting, cut(groups[2]), cut(groups[3])]
    assert R3().metrics(found) == {"group/reflecting": 1.0, "group/ranked": 5.0}
    assert R3(ranking=False).metrics(found)["group/ranked"] == 0.0
