"""The user's DeepSpeed configuration with the learner's settings, and the learning rate."""

import pytest

from learner.step.deepspeed_config import deepspeed_config, learning_rate_share
from r3l.errors import UserError
from r3l.run.settings.learner import LearnerConfig


def merged(theirs: object, **settings: object) -> dict:
    return deepspeed_config(LearnerConfig(deepspeed=theirs, **settings), bf16=False)


def test_keys_of_the_user_are_merged() -> None:
    config = merged(
        {
            "optimizer": {"params": {"eps": 1e-6}},
            "zero_optimization": {"overlap_comm": True},
            "comms_logger": {"enabled": True},
        },
        zero_stage=2,
    )
    assert config["zero_optimization"] == {"stage": 2, "overlap_comm": True}
    assert config["optimizer"]["params"]["eps"] == 1e-6
    assert config["optimizer"]["params"]["betas"] == [0.9, 0.95]
    assert config["comms_logger"] == {"enabled": True}


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        ({"train_batch_size": 64}, ["train_batch_size=64", "groups_per_step"]),
        ({"gradient_clipping": 0.5}, ["gradient_clipping=0.5", "grad_clip"]),
        ({"zero_optimization": {"stage": 3}}, ["zero_optimization.stage=3", "zero_stage"]),
        ({"optimizer": {"type": "Lion"}}, ["optimizer.type", "lr, betas"]),
        ({"scheduler": {"type": "WarmupLR"}}, ["scheduler.type", "schedule"]),
        ({"fp16": {"enabled": True}}, ["fp16.enabled=true", "dtype"]),
        ({"elasticity": {"enabled": True}}, ["elasticity.enabled", "--learner"]),
        ({"train_batch_size": 1, "amp": {"enabled": True}}, ["train_batch_size", "amp"]),
    ],
)
def test_every_conflict_is_named_with_the_setting_to_use(theirs: dict, named: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        merged(theirs)
    assert all(name in str(caught.value) for name in named) and "\n" not in str(caught.value)


def test_deepspeeds_own_adam_gets_only_arguments_that_it_knows() -> None:
    assert merged({})["optimizer"]["params"]["fused"] is True
    chosen = merged({"optimizer": {"params": {"torch_adam": False}}}, offload="optimizer",
                    zero_stage=2)["optimizer"]["params"]  # fmt: skip
    assert chosen["torch_adam"] is False and "fused" not in chosen


def test_offload_is_refused_below_the_zero_stage_it_needs() -> None:
    with pytest.raises(UserError, match="zero_stage of 1"):
        merged({}, offload="optimizer")
    with pytest.raises(UserError, match="zero_stage of 3"):
        merged({}, offload="all", zero_stage=2)
    zero = merged({}, offload="all", zero_stage=3)["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "cpu"


def test_bfloat16_sums_gradients_in_float32_from_zero_stage_1_on() -> None:
    config = deepspeed_config(LearnerConfig(), bf16=True)
    assert config["zero_optimization"]["stage"] == 1
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.775, 0.55, 0.325]),
        ("cosine", [0.5, 1, 1, 0.8682, 0.55, 0.2318]),
    ],
)
def test_the_rate_rises_then_stays_or_falls_to_its_floor(
    schedule: str, expected: list[float]
) -> None:
    config = LearnerConfig(schedule=schedule, warmup_steps=2, steps=6, min_lr_share=0.1)
    shares = [learning_rate_share(config, step) for step in range(6)]
    assert shares == pytest.approx(expected, abs=1e-4)
    assert learning_rate_share(config, 100) == pytest.approx(1.0 if schedule == "constant" else 0.1)
