"""Why a run learns little: every reason is named with a setting, and a healthy run is silent."""

import random
from dataclasses import replace

import pytest

from launch.inspection.evidence import LOOKED_AT, Evidence
from launch.inspection.learning import (
    GOES_BACK,
    RARE,
    LearningWatch,
    Reason,
    of_evidence,
    reasons,
)
from launch.inspection.retry_reliance import guidance
from learner.evaluation.metrics import wilson
from r3l.run.files.progress_lines import EvalLine, History, StepLine
from tests.r3l.files.made import evaluation

HEALTHY = {
    "group/attempts": 32.0, "group/retries": 8.0, "group/successes": 7.0,
    "group/reward_mean": 0.3, "group/best_reward": 0.6, "group/success_base": 0.2,
    "group/no_contrast": 0.4,
    "group/cut_attempts": 0.1, "group/cut_responses": 0.01, "group/part_answered": 0.9,
    "group/reflection_valid": 0.9, "group/improvement_rate": 0.3, "learner/entropy": 0.4,
    "learner/behaviour_ess_base": 0.9, "learner/behaviour_kl_base": 0.08,
    "learner/kl_reference": 0.2, "weights/patch_density": 0.02,
    "learner/grad_norm": 0.5,
}  # fmt: skip
FAILS = {"group/successes": 0.0, "group/success_base": 0.0, "group/best_reward": 0.1}

NONE = {"group__successes": 0.0, "group__success_base": 0.0, "group__best_reward": 0.8}


def steps(count: int = LOOKED_AT, **changed: float) -> list[StepLine]:
    changes = {tag.replace("__", "/"): value for tag, value in changed.items()}
    return [StepLine(step, HEALTHY | changes) for step in range(1, count + 1)]


def small(count: int, **changed: float) -> list[StepLine]:
    """Steps of four attempts."""
    return steps(count, **{"group__attempts": 4.0, "group__retries": 0.0} | changed)


def varied(tag: str, *values: float, **more: float) -> list[StepLine]:
    """Steps in which one metric varies."""
    changes = FAILS | {name.replace("__", "/"): value for name, value in more.items()}
    return [
        StepLine(n, HEALTHY | changes | {tag: value}) for n, value in enumerate(values, start=1)
    ]


def evaluated(step: int, success: float, tasks: int = 100, **more: float) -> EvalLine:
    """An evaluation whose intervals are 0.1 wide to each side."""
    around = {"success_low": success - 0.1, "success_high": success + 0.1}
    return evaluation(step, success, tasks=tasks, **around, **more)


def alarms(*given: object) -> list[str]:
    return [reason.name for reason in reasons(*given) if reason.alarm]  # type: ignore[arg-type]


def test_a_healthy_run_is_silent() -> None:
    assert reasons(steps(40)) == []
    assert reasons(steps(40), [evaluated(0, 0.2), evaluated(20, 0.3), evaluated(40, 0.25)]) == []
    assert reasons(steps(group__success_base=1.0, learner__entropy=0.001)) == []
    assert reasons([StepLine(step) for step in range(1, 10)]) == []


@pytest.mark.parametrize(
    ("changed", "what", "setting"),
    [
        ({"group__cut_attempts": 1.0}, "100% of the attempts are cut off", "actor.max_model_len"),
        ({"group__cut_responses": 0.5}, "50% of the responses are cut off",
         "actor.max_response_tokens"),
        ({"group__part_answered": 0.0}, "no response gives an answer", "system prompt"),
        ({"group__no_contrast": 1.0}, "rewards of every group are equal", "algorithm.group_size"),
        ({"group__no_contrast": 1.0, "group__success_base": 1.0}, "rewards of every group",
         "choose harder ones"),
        ({"group__reflection_valid": 0.1, "group__reflection_not_json": 0.9},
         "90% of the reflections cannot be read (mostly not_json)",
         "algorithm.constrained_reflection"),
        ({"group__improvement_rate": 0.0}, "no retry is better", "algorithm=grpo"),
        ({"learner__entropy": 0.001}, "entropy is 0.001 nats", "actor.temperature"),
        ({"learner__behaviour_ess_base": 0.02}, "sample size 0.02", "buffer.max_staleness"),
        ({"learner__behaviour_kl_base": 3.0}, "KL 3 nats", "learner.lr"),
        ({"learner__kl_reference": 30.0}, "KL to the reference model is 30", "algorithm.kl_coef"),
        ({"weights__patch_density": 1e-5}, "changes 1e-05 of the weights", "raise learner.lr"),
        ({"agent__with_tools": 400.0, "agent__tools_called": 0.0},
         "400 calls of agents offered tools, and no reply called one", "system prompt"),
    ],
)  # fmt: skip
def test_every_cause_is_named_with_the_setting_to_change(
    changed: dict[str, float], what: str, setting: str
) -> None:
    (reason,) = reasons(steps(20, **changed))
    assert reason.alarm and reason.name and what in reason.what and setting in reason.remedy
    few = reasons(steps(1, **changed))
    assert not any(each.alarm for each in few) or "agent__with_tools" in changed


def test_a_few_good_steps_among_bad_ones_hide_nothing() -> None:
    one_good = varied("learner/entropy", 0.001, 0.001, 0.3, 0.001, 0.001, group__successes=1.0)
    assert alarms(one_good) == ["no entropy"]
    one_bad = varied("learner/behaviour_kl_base", 0.1, 0.1, 40.0, 0.1, 0.1, group__successes=1.0)
    assert alarms(one_bad) == []


def test_a_growing_share_that_is_cut_off_is_an_alarm_and_a_falling_one_a_note() -> None:
    grows = varied("group/cut_responses", 0.4, 0.5, 0.6, 0.7, 0.8)
    cut, success = reasons(grows)
    assert cut.alarm and not success.alarm
    assert cut.what == (
        "60% of the responses are cut off at their limit (45% at first, 70% lately)"
    )
    (note, _) = sorted(reasons(varied("group/cut_responses", 0.9, 0.8, 0.6, 0.5, 0.4)))
    assert not note.alarm and note.name == "cut responses"
    assert not [each for each in reasons(varied("group/cut_responses", *[0.3] * 9)) if each.alarm]


def test_what_is_cut_off_in_the_first_evaluation_is_said_before_training_tells() -> None:
    first = evaluated(0, 0.0, cut_responses=0.8)
    cut, success = reasons([], [first])
    assert cut.what.startswith("80% of the responses") and cut.alarm
    assert success.what.startswith("no success yet in 0 attempts and 1 evaluation: at most 3.0% su")


def test_no_success_is_a_note_with_its_bound_and_from_600_attempts_on_an_alarm() -> None:
    assert reasons(varied("group/reward_mean", 0.1)) == []  # 32 attempts tell nothing
    failed = varied("group/reward_mean", *[0.1] * 18)
    (note,) = reasons(failed)
    assert not note.alarm and "no success yet in 576 attempts: at most 0.5% succeed" in note.what
    assert "the mean reward is 0.1, the rewards of 40% of the groups are equal" in note.what
    (alarm,) = reasons([*failed, *varied("group/reward_mean", 0.1)])
    assert alarm.alarm and "no success in 608 attempts" in alarm.what
    assert "r3l-learner warmup" in alarm.remedy and "reward a part" in alarm.remedy
    assert reasons(failed, [evaluated(0, 0.01)]) == []  # a success of the evaluation
    long = varied("group/reward_mean", *[0.1] * 40)
    assert alarms(long, [evaluated(0, 0.01)]) == ["no success"]
    assert alarms(long, [evaluated(0, 0.01), evaluated(30, 0.01)]) == []


def test_no_success_is_no_alarm_while_the_mean_reward_rises_or_retries_succeed() -> None:
    rising = varied("group/reward_mean", *(0.1 + 0.01 * n for n in range(40)))
    assert [(each.name, each.alarm) for each in reasons(rising)] == [("no success", False)]
    assert reasons(varied("group/reward_mean", *[0.1] * 40, group__successes=1.0)) == []
    near = varied("group/reward_mean", *[0.97] * 40, group__best_reward=0.98)
    assert reasons(near) == []  # a world in which nothing earns 1


def test_a_run_whose_reflections_cannot_be_read_is_not_told_to_sample_reflections() -> None:
    unread = {"group__reflection_valid": 0.0, "group__retries": 0.0}
    said = {each.name: each.remedy for each in reasons(varied("group/x", *[0.0] * 9, **unread))}
    assert (
        "algorithm=r3l" not in said["no success"] and "algorithm=grpo" in said["unread reflections"]
    )
    grpo = [StepLine(n, {"group/attempts": 32.0}) for n in range(9)]
    assert "algorithm=r3l" in reasons(grpo)[0].remedy


def test_reflections_that_call_failures_a_success_are_a_note() -> None:
    blind = {"group__success_base": 0.6, "group__trigger_rate": 0.03}
    (note,) = reasons(steps(**blind))
    assert note.name == "unseen failures" and not note.alarm
    assert note.what.startswith("40% of the attempts fail, but only 3% of the reflections call ")
    assert reasons(steps(**{**blind, "group__trigger_rate": 0.2})) == []
    assert reasons(steps(**{**blind, "group__success_base": 0.95})) == []


def test_a_success_that_was_frequent_and_is_lost_is_an_alarm_and_a_rare_one_is_not() -> None:
    lost = varied("group/reward_mean", *[0.1] * 20)
    assert alarms([*steps(5), *lost]) == ["success lost"]
    rare = varied("group/reward_mean", *[0.1] * 20, group__successes=0.1)
    assert alarms([*rare, *rare, *lost]) == []
    assert alarms([*steps(5), *lost], [evaluated(0, 0.2), evaluated(20, 0.1)]) == []


def test_groups_without_contrast_below_600_attempts_are_a_note() -> None:
    (note,) = reasons(steps(9, group__no_contrast=1.0))
    assert (note.name, note.alarm) == ("no contrast", False)
    (never,) = reasons(varied("group/no_contrast", *[1.0] * 25))
    assert never.name == "no success" and "the rewards of 100% of the groups" in never.what


def test_a_few_steps_that_trained_nothing_say_so_and_are_no_alarm() -> None:
    (note,) = reasons(few := small(2, learner__trained_tokens=0.0))
    assert (note.name, note.alarm) == ("untrained", False)
    assert note.what.startswith("no token was trained in 2 steps, so the policy is what it was")
    assert reasons([*few, *small(1, learner__trained_tokens=9.0)]) == [] == reasons(small(2))


def test_tasks_that_the_run_has_solved_itself_are_no_alarm() -> None:
    solved = steps(9, group__no_contrast=1.0, group__success_base=1.0)
    (note,) = reasons([*steps(2), *solved])
    assert (note.name, note.alarm) == ("solved", False)


def test_retries_that_are_never_better_are_an_alarm_from_150_on() -> None:
    assert alarms(steps(18, group__improvement_rate=0.0)) == []
    assert alarms(steps(19, group__improvement_rate=0.0)) == ["useless retries"]
    some = [
        *steps(19, group__improvement_rate=0.0),
        *steps(1),
        *steps(5, group__improvement_rate=0),
    ]
    assert alarms(some) == []
    solved = steps(40, group__improvement_rate=0.0, group__success_base=0.97)
    assert reasons(solved) == []  # a success cannot be improved
    many = varied("group/improvement_rate", *[0.0] * 12, group__retries=16.0)
    assert alarms(many) == []  # below 600 attempts without a success


def test_an_evaluation_worse_than_the_first_or_the_best_is_said_with_its_interval() -> None:
    lines = [evaluated(0, 0.5), evaluated(10, 0.28)]
    (worse,) = reasons([], lines)
    assert worse.alarm and worse.what == (
        "the evaluated success fell from 0.50 at step 0 to 0.28 at step 10: by 0.22, "
        "95 % interval 0.08 to 0.36"
    )  # 0.22 ± √(0.1² + 0.1²)
    assert reasons([], [evaluated(0, 0.5), evaluated(10, 0.37)]) == []
    assert alarms([], [evaluated(0, 0.3), evaluated(10, 0.9), evaluated(20, 0.6)]) == [
        "worse evaluation"
    ]
    assert alarms([], [evaluated(0, 0.3), evaluated(10, 0.5), evaluated(20, 0.3)]) == []
    poorer = [
        evaluated(n, 0.5, reward=reward, reward_low=reward - 0.01, reward_high=reward + 0.01)
        for n, reward in ((0, 0.5), (9, 0.4))
    ]
    (reward,) = reasons([], poorer)
    assert reward.what.startswith("the evaluated reward fell from 0.50")
    without = [evaluation(0, 0.5), evaluation(9, 0.1)]
    assert reasons([], without) == []  # lines without intervals


def curve(*rewards: float, count: int = 30, **more: float) -> list[StepLine]:
    """Steps of 64 attempts, `count` of each mean reward, with noise."""
    chance, changes = random.Random(0), {tag.replace("__", "/"): v for tag, v in more.items()}
    means = [reward + chance.gauss(0, 0.05) for reward in rewards for _ in range(count)]
    return [
        StepLine(n, HEALTHY | {"group/attempts": 64.0} | changes | {"group/reward_mean": mean})
        for n, mean in enumerate(means, start=1)
    ]


def test_a_reward_that_collapsed_long_ago_is_an_alarm() -> None:
    (fell,) = reasons(curve(0.9, 0.2, 0.2))
    assert fell.alarm and fell.name == "reward fell"
    assert fell.what.startswith("the mean reward fell from 0.91, its best, to 0.19")
    assert alarms(curve(-2.0, -10.0)) == ["reward fell"]
    assert reasons(curve(0.5, 0.45, 0.5)) == [] == reasons(curve(0.2, 0.9))
    tested = [evaluated(0, 0.2), evaluated(20, 0.4), evaluated(40, 0.6)]
    assert [each.alarm for each in reasons(curve(0.9, 0.2), tested)] == [False]


def test_a_plateau_after_a_large_gain_is_a_note() -> None:
    surer = [*curve(0.1), *curve(0.4), *curve(0.7, learner__entropy=0.05)]
    (sinks,) = reasons([*curve(0.1), *curve(0.7, learner__entropy=0.05)])
    assert (sinks.name, sinks.alarm) == ("entropy sinks", False) and not alarms(surer)
    flat = curve(0.7, learner__entropy=0.001)
    assert alarms([*curve(0.1), *flat]) == [] and alarms(flat) == ["no entropy"]
    capped = [*curve(0.2, **NONE), *curve(0.7, **NONE)]
    assert not alarms(capped) and alarms(curve(0.7, **NONE)) == ["no success"]


def test_tools_that_no_task_needs_are_a_note() -> None:
    unused = {"agent__with_tools": 400.0, "agent__tools_called": 0.0}
    (solved,) = reasons(steps(20, group__success_base=0.95, **unused))
    assert not solved.alarm
    assert not alarms([*curve(0.1, **unused), *curve(0.7, **unused)])


def test_fifty_evaluations_of_an_unchanged_policy_are_no_alarm_in_98_of_100_runs() -> None:
    chance, false, runs, tasks = random.Random(2), 0, 100, 50
    for _ in range(runs):
        won = [sum(chance.random() < 0.5 for _ in range(tasks)) for _ in range(50)]
        evidence, found = Evidence(), False
        for step, wins in enumerate(won):
            low, high = wilson([1.0] * wins + [0.0] * (tasks - wins))
            evidence.add_evaluation(
                evaluation(step, wins / tasks, tasks=tasks, success_low=low, success_high=high)
            )
            found = found or "worse evaluation" in [r.name for r in of_evidence(evidence)]
        false += found
    assert false <= 2  # 30 with plain intervals


def test_an_entropy_that_moves_far_is_an_alarm_unless_the_reward_rises() -> None:
    grows = varied("learner/entropy", *(0.4 + 0.1 * n for n in range(16)), group__successes=1.0)
    (found,) = reasons(grows)
    assert found.name == "entropy grows" and "from 0.4 to 1.7 nats" in found.what
    sinks = varied("learner/entropy", *(0.4 * 0.7**n for n in range(10)), group__successes=1.0)
    assert alarms(sinks) == ["entropy sinks"]
    learning = [
        replace(step, metrics={**step.metrics, "group/reward_mean": step.step / 50})
        for step in sinks
    ]
    assert alarms(learning) == []


def test_tools_that_are_no_longer_called_are_an_alarm_too() -> None:
    calls = [(20.0 * n, min(5.0 * n, 50.0)) for n in range(1, 30)]
    made = [
        StepLine(n, HEALTHY | {"agent/with_tools": offered, "agent/tools_called": called})
        for n, (offered, called) in enumerate(calls)
    ]
    assert alarms(made[:12]) == []
    (reason,) = reasons(made)
    assert reason.what.startswith("140 calls of agents offered tools")  # of the newest 8 steps
    unread = steps(agent__with_tools=90.0, agent__tool_parse_failed=7.0)
    (reason,) = reasons(unread)
    assert "; 7 replies hold a call that cannot be read" in reason.what


def test_weights_that_do_not_change_are_named_although_few_steps_publish_them() -> None:
    without = {tag: value for tag, value in HEALTHY.items() if tag != "weights/patch_density"}
    rare = [StepLine(step, without) for step in range(1, 5)]
    (reason,) = reasons([*rare, StepLine(5, HEALTHY | {"weights/patch_density": 0.0})])
    assert "a step changes 0 of the weights" in reason.what
    flat = {"weights__patch_density": 0.0, "learner__grad_norm": 0.0}
    assert reasons(steps(LOOKED_AT, **flat)) == []  # equal rewards have no gradient
    assert reasons([*rare, StepLine(5, HEALTHY)]) == [] == reasons([*rare, StepLine(5, without)])


def test_steps_of_an_earlier_r3l_without_counts_are_judged_by_their_last_five() -> None:
    uncounted = {"group/attempts", "group/retries", "group/successes"}
    old = {tag: value for tag, value in HEALTHY.items() if tag not in uncounted}
    for changed, name in (
        ({"group/no_contrast": 1.0}, "no contrast"),
        ({"group/improvement_rate": 0.0}, "useless retries"),
        ({"group/cut_responses": 1.0}, "cut responses"),
    ):
        lines = [StepLine(n, old | changed) for n in range(1, 6)]
        assert alarms(lines) == [name] and alarms(lines[:4]) == []
        assert alarms([StepLine(n, old) for n in range(50)] + lines) == [name]


def test_what_guidance_brings_is_said_with_its_error() -> None:
    assert guidance(steps()) is None
    gains = {
        "group__guidance_gain": -0.11, "group__guidance_gain_se": 0.2, "group__guidance_slots": 8.0,
    }  # fmt: skip
    said = guidance(steps(25, **gains))
    assert said is not None and "algorithm.gate=measured" in said.remedy
    assert said.what == "guidance gain: -0.11 ± 0.04 over another attempt"  # 0.2 / √20
    unsure = guidance(steps(1, **gains))
    assert unsure is not None and not unsure.remedy
    without_slots = {tag: value for tag, value in gains.items() if not tag.endswith("slots")}
    assert guidance(steps(25, **without_slots)) == said  # as earlier versions wrote them


def test_what_guidance_brings_is_said_with_what_retries_rely_on_it() -> None:
    gains = {"group__guidance_gain": 0.2, "group__guidance_gain_se": 0.0}
    said = guidance(steps(3, **gains, learner__reliance=-0.25))
    assert said.what == ("guidance gain: +0.20 over another attempt; reliance -0.25 nats a token")


def test_a_step_counts_in_the_guidance_gain_by_its_retried_attempts() -> None:
    tags = "group__guidance_gain", "group__guidance_gain_se", "group__guidance_slots"
    many = steps(1, **dict(zip(tags, (0.5, 0.2, 30.0), strict=True)))
    few = steps(1, **dict(zip(tags, (-1.0, 0.9, 10.0), strict=True)))
    said = guidance([*many, *few])
    # (30 × 0.5 − 10 × 1) / 40, and √((30 × 0.2)² + (10 × 0.9)²) / 40
    assert said is not None and said.what.startswith("guidance gain: +0.12 ± 0.27 over")


def test_the_example_of_a_reflection_that_cannot_be_read_is_of_the_last_step() -> None:
    unread = {"group__reflection_valid": 0.0, "group__reflection_not_json": 1.0}
    quoted = [replace(step, unread=f"'Well {step.step}'") for step in steps(LOOKED_AT, **unread)]
    (reason,) = reasons(quoted)
    assert "mostly not_json" in reason.what and reason.what.endswith(" 'Well 5'")


def test_a_cause_is_reported_once_until_it_was_away_for_five_lines() -> None:
    watch, bad = LearningWatch(), steps(9, learner__entropy=0.001)
    assert [len(watch.lines(step)) for step in bad] == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert [watch.lines(step) for step in steps(9)] == [[]] * 9
    said = [watch.lines(step) for step in bad]
    assert [len(lines) for lines in said] == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert said[2][0].startswith("learns little or nothing: the policy's entropy is 0.001")


def test_a_note_that_becomes_an_alarm_is_said_again() -> None:
    watch = LearningWatch()
    said = [line for step in varied("group/reward_mean", *[0.1] * 25) for line in watch.lines(step)]
    note, alarm = said
    assert note.startswith("note on learning: no success yet in 64 attempts: at most 4.7% succeed")
    assert alarm.startswith(f"learns little or nothing: no success in {RARE + 8} attempts")


def test_evaluations_and_earlier_launches_count_and_steps_that_a_restart_lost_do_not() -> None:
    earlier = History(varied("group/reward_mean", *[0.1] * 18), [evaluated(0, 0.0, reward_low=0.2,
                      reward_high=0.3)])  # fmt: skip
    watch = LearningWatch(earlier)
    (said,) = watch.lines(varied("group/reward_mean", *[0.1] * 19)[-1])
    assert said.startswith("learns little or nothing: no success in 608 attempts and 1 evaluation")
    worse = evaluated(18, 0.0, reward=0.1, reward_low=0.09, reward_high=0.11)
    (said,) = watch.lines(worse)
    assert "the evaluated reward fell from 0.25 at step 0 to 0.10" in said
    watch.go_back(1)
    (said,) = watch.lines(varied("group/reward_mean", 0.1, 0.1)[-1])
    assert said.startswith("note on learning: no success yet in 64 attempts and 2 evaluations: ")


@pytest.mark.parametrize("resumed", [False, True])
def test_after_a_restart_the_evidence_is_that_of_the_steps_that_count(resumed: bool) -> None:
    steps = varied("group/reward_mean", *[0.001 * n for n in range(3 * GOES_BACK)])
    evals = [evaluated(n, 0.1) for n in range(0, 3 * GOES_BACK, 100)]
    watch = LearningWatch(History([*steps], [*evals]) if resumed else None)
    for line in () if resumed else sorted([*steps, *evals], key=lambda line: line.step):
        watch.lines(line)
    assert len(watch._recent.steps) < 2 * GOES_BACK
    for step in (2 * GOES_BACK + 50, 2 * GOES_BACK + 1):
        watch.go_back(step)
        kept = Evidence(steps[:step], evals)
        assert vars(watch._evidence) | {"first": kept.first} == vars(kept)
    watch.go_back(1)
    assert watch._evidence.attempts == 0 and not watch._recent.steps
    assert watch._evidence.evaluations == Evidence(steps, evals).evaluations


def test_evaluations_ahead_of_a_restart_count_since_the_learner_does_not_play_them_again() -> None:
    played = [StepLine(n, {"group/attempts": 8.0, "group/retries": 1.0}) for n in range(1, 11)]
    evals = [evaluated(n, 0.1 * n, reward=0.1) for n in (0, 4, 9, 10)]
    watch = LearningWatch()
    for line in sorted([*played, *evals], key=lambda line: line.step):
        watch.lines(line)
    again = LearningWatch(History(played[:6], [*evals]))  # the same, by a launcher that resumes
    watch.go_back(6)
    for count in range(6, 13):
        if count > 6:
            line = StepLine(count, {"group/attempts": 8.0, "group/retries": 1.0})
            for each in (watch, again):
                each.lines(line)
        same = Evidence([*watch._recent.steps], evals)  # as `status` and `doctor` read the file
        for each in (watch, again):
            assert vars(each._evidence) | {"first": same.first} == vars(same), count


def test_a_reason_needs_no_name() -> None:
    assert Reason("what", "remedy") == ("what", "remedy", "", True)
