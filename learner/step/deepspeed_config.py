"""Makes DeepSpeed's configuration and the learning rate of each step from the learner's settings.

    keys from LearnerConfig  +  the user's keys, refused if they are in OWNED but not in FREE

The launcher checks settings with this module, so it imports neither torch nor deepspeed.
"""

import json
import math
from collections.abc import Collection
from typing import Any

from r3l.algorithms.queries import Weights
from r3l.errors import UserError
from r3l.run.settings.learner import LearnerConfig
from r3l.settings.section import flat_settings

OWNED = {
    "train_batch_size": "groups_per_step",
    "train_micro_batch_size_per_gpu": "tokens_per_micro_batch",
    "gradient_accumulation_steps": "tokens_per_micro_batch",
    "gradient_clipping": "grad_clip",
    "optimizer": "lr, betas, weight_decay",
    "scheduler": "schedule, warmup_steps, min_lr_share",
    "bf16": "dtype",
    "fp16": "dtype",
    "amp": "dtype",
    "zero_optimization.stage": "zero_stage",
    "elasticity": "--learner of r3l-launch",
    "autotuning": "--learner of r3l-launch",
}
"""DeepSpeed keys that the learner sets itself, each with the setting that decides it."""
FREE = {"optimizer.params.torch_adam", "optimizer.params.fused", "optimizer.params.eps"}
"""Keys inside OWNED keys that the user may still set, because they do not change results."""


def deepspeed_config(config: LearnerConfig, *, bf16: bool, gpu: bool = False) -> dict[str, Any]:
    """Returns DeepSpeed's configuration, with the keys that the user adds. Raises UserError if the
    user's settings conflict with the learner's."""
    own, given = _own(config, bf16=bf16, gpu=gpu), config.deepspeed
    for key in given:
        if isinstance(own.get(key), dict) and not isinstance(given[key], dict):
            raise UserError(f"learner.deepspeed.{key}: must be a mapping of DeepSpeed's settings")
    if clashes := _clashes(given):
        raise UserError(
            f"learner.deepspeed: the learner sets these keys itself: {'; '.join(clashes)}"
        )
    merged = _merge(own, given)
    params = merged["optimizer"]["params"]
    if not params["torch_adam"]:
        params.pop("fused", None)  # an argument of PyTorch's AdamW, unknown to DeepSpeed's
    return merged


def zero_stage(config: LearnerConfig, *, bf16: bool) -> int:
    """Returns the ZeRO stage that is used: at least 1 in bfloat16."""
    # At stage 0, the first bfloat16 step lowers the loss by a fifth less than at other stages.
    return max(config.zero_stage, 1) if bf16 else config.zero_stage


def check_needs(needs: Collection[Weights], config: LearnerConfig, *, bf16: bool) -> None:
    """Refuses weights that an algorithm needs and this learner cannot hold."""
    if "averaged" in needs and zero_stage(config, bf16=bf16) == 3:
        raise UserError(
            "learner.zero_stage=3: the algorithm needs averaged weights, but every rank holds only "
            "a share of the weights; set learner.zero_stage to 2 or less"
        )


def learning_rate_share(config: LearnerConfig, step: int) -> float:
    """Returns the learning rate as a share of `lr`. `step`: the optimizer step, from 0."""
    if step < config.warmup_steps or config.schedule == "constant":
        return min(1.0, (step + 1) / max(config.warmup_steps, 1))
    span = max(config.steps - config.warmup_steps, 1)
    done = min((step - config.warmup_steps) / span, 1.0)
    falling = 1.0 - done if config.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2
    return config.min_lr_share + (1.0 - config.min_lr_share) * falling


def _own(config: LearnerConfig, *, bf16: bool, gpu: bool) -> dict[str, Any]:
    stage = zero_stage(config, bf16=bf16)
    zero: dict[str, Any] = {"stage": stage}
    if config.offload != "none":
        needed = 3 if config.offload == "all" else 1
        if stage < needed:
            raise UserError(
                f"learner.offload={config.offload}: needs learner.zero_stage of {needed} or more"
            )
        host = {"device": "cpu", "pin_memory": gpu}
        zero["offload_optimizer"] = host
        if config.offload == "all":
            zero["offload_param"] = host
    own = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.grad_clip,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": config.lr,
                "betas": list(config.betas),
                "weight_decay": config.weight_decay,
                "torch_adam": True,
                # One pass over memory: on a CPU it takes a third of the time.
                "fused": True,
            },
        },
        "bf16": {"enabled": bf16},
        "zero_optimization": zero,
        "steps_per_print": 1 << 30,
    }
    if bf16:  # a bfloat16 sum of many micro-batches would lose the last ones
        own["data_types"] = {"grad_accum_dtype": "fp32"}
    return own


def _clashes(given: dict[str, Any]) -> list[str]:
    """Lists the user's keys that are refused, each with its value."""
    clashes = []
    for path, value in flat_settings(given).items():
        owner = next((o for o in OWNED if path == o or path.startswith(f"{o}.")), None)
        if owner is not None and path not in FREE and value != {}:
            clashes.append(f"{path}={json.dumps(value)} (use learner settings {OWNED[owner]})")
    return clashes


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for key, value in above.items():
        under = both.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            value = _merge(under, value)
        both[key] = value
    return both
