"""Why a run learns nothing: every reason is named with a setting, and a healthy run is silent."""

from dataclasses import replace

import pytest

from launch.inspection.learning import LOOKED_AT, LearningWatch, guidance, reasons
from r3l.run.files.progress_lines import StepLine

HEALTHY = {
    "group/reward_mean": 0.3, "group/success_base": 0.2, "group/no_contrast": 0.4,
    "group/cut_attempts": 0.1, "group/cut_responses": 0.01, "group/part_answered": 0.9,
    "group/reflection_valid": 0.9, "group/improvement_rate": 0.3, "learner/entropy": 0.4,
    "learner/behaviour_ess_base": 0.9, "learner/behaviour_kl_base": 0.08,
    "learner/kl_reference": 0.2, "weights/patch_density": 0.02,
    "learner/grad_norm": 0.5,
}  # fmt: skip


def steps(count: int = LOOKED_AT, **changed: float) -> list[StepLine]:
    changes = {tag.replace("__", "/"): value for tag, value in changed.items()}
    return [StepLine(step, HEALTHY | changes) for step in range(1, count + 1)]


def test_a_healthy_run_is_silent() -> None:
    assert reasons(steps(40)) == []
    assert reasons(steps(group__success_base=1.0, learner__entropy=0.001)) == []
    assert reasons([StepLine(step) for step in range(9)]) == []


@pytest.mark.parametrize(
    ("changed", "what", "setting"),
    [
        ({"group__cut_attempts": 1.0}, "100% of the attempts are cut off", "actor.max_model_len"),
        ({"group__cut_responses": 1.0}, "100% of the responses are cut off",
         "actor.max_response_tokens"),
        ({"group__part_answered": 0.0}, "no response gives an answer", "system prompt"),
        ({"group__no_contrast": 1.0}, "rewards of every group are equal", "algorithm.group_size"),
        ({"group__no_contrast": 1.0, "group__success_base": 1.0}, "rewards of every group",
         "choose harder ones"),
        ({"group__reflection_valid": 0.0, "group__reflection_not_json": 1.0},
         "no reflection can be read (mostly not_json)", "algorithm.constrained_reflection"),
        ({"group__improvement_rate": 0.0}, "no retry is better", "algorithm=grpo"),
        ({"learner__entropy": 0.001}, "entropy is 0.001 nats", "actor.temperature"),
        ({"learner__behaviour_ess_base": 0.02}, "sample size 0.02", "buffer.max_staleness"),
        ({"learner__behaviour_kl_base": 3.0}, "KL 3 nats", "learner.lr"),
        ({"learner__kl_reference": 30.0}, "KL to the reference model is 30", "algorithm.kl_coef"),
        ({"weights__patch_density": 1e-5}, "changes 1e-05 of the weights", "raise learner.lr"),
    ],
)  # fmt: skip
def test_every_cause_is_named_with_the_setting_to_change(
    changed: dict[str, float], what: str, setting: str
) -> None:
    (reason,) = reasons(steps(**changed))
    assert what in reason.what and setting in reason.remedy
    assert reasons(steps(LOOKED_AT - 1, **changed)) == []
    assert reasons([*steps(**changed), *steps(1)]) == []  # one good step is enough


def test_weights_that_do_not_change_are_named_although_few_steps_publish_them() -> None:
    without = {tag: value for tag, value in HEALTHY.items() if tag != "weights/patch_density"}
    rare = [StepLine(step, without) for step in range(1, 5)]
    (reason,) = reasons([*rare, StepLine(5, HEALTHY | {"weights/patch_density": 0.0})])
    assert "a step changes 0 of the weights" in reason.what
    flat = {"weights__patch_density": 0.0, "learner__grad_norm": 0.0}
    assert reasons(steps(**flat)) == []  # equal rewards have no gradient
    assert reasons([*rare, StepLine(5, HEALTHY)]) == [] == reasons([*rare, StepLine(5, without)])


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


def test_a_step_counts_in_the_guidance_gain_by_its_retried_attempts() -> None:
    tags = "group__guidance_gain", "group__guidance_gain_se", "group__guidance_slots"
    many = steps(1, **dict(zip(tags, (0.5, 0.2, 30.0), strict=True)))
    few = steps(1, **dict(zip(tags, (-1.0, 0.9, 10.0), strict=True)))
    said = guidance([*many, *few])
    # (30 × 0.5 − 10 × 1) / 40, and √((30 × 0.2)² + (10 × 0.9)²) / 40
    assert said is not None and said.what.startswith("guidance gain: +0.12 ± 0.27 over")


def test_the_example_of_a_reflection_that_cannot_be_read_is_of_the_last_step() -> None:
    unread = {"group__reflection_valid": 0.0, "group__reflection_not_json": 1.0}
    quoted = [replace(step, unread=f"'Well {step.step}'") for step in steps(**unread)]
    (reason,) = reasons(quoted)
    assert "mostly not_json" in reason.what and reason.what.endswith(" 'Well 5'")


def test_a_cause_is_reported_once_until_it_disappears() -> None:
    watch, bad = LearningWatch(), steps(6, group__improvement_rate=0.0)
    said = [len(watch.lines(step)) for step in bad]
    assert said == [0, 0, 0, 0, 1, 0]
    assert [watch.lines(step) for step in steps(1)] == [[]]
    assert [len(watch.lines(step)) for step in bad] == [0, 0, 0, 0, 1, 0]
