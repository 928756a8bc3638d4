"""DeepSpeed's configuration and the learning rate of each step, from the learner's settings.

    ours (LearnerConfig)  <-  the user's DeepSpeed configuration, unless the two contradict

Importing this module imports neither torch nor deepspeed, so that a launcher can check settings.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from r3l.errors import UserError
from r3l.settings.flat import flat_settings
from r3l.settings.learner import LearnerConfig

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
"""DeepSpeed keys that the learner sets itself, and the settings they come from."""
FREE = {"optimizer.params.torch_adam", "optimizer.params.fused", "optimizer.params.eps"}
"""Keys below owned ones that the user may set: they change no result."""


def deepspeed_config(config: LearnerConfig, *, bf16: bool, gpu: bool = False) -> dict[str, Any]:
    """The DeepSpeed configuration: ours, with the user's keys merged in.

    Raises UserError, naming every user key that contradicts the learner's settings.
    """
    ours = _ours(config, bf16=bf16, gpu=gpu)
    theirs = _without_auto(user_config(config.deepspeed))
    for key in theirs:
        if isinstance(ours.get(key), dict) and not isinstance(theirs[key], dict):
            raise UserError(f"learner.deepspeed.{key}: must be a mapping of DeepSpeed's settings")
    clashes = _clashes(ours, theirs)
    if clashes:
        raise UserError(f"learner.deepspeed: set by the learner itself: {'; '.join(clashes)}")
    merged = _merge(ours, theirs)
    params = merged["optimizer"]["params"]
    if not params["torch_adam"]:
        params.pop("fused", None)  # an argument of PyTorch's AdamW, unknown to DeepSpeed's
    return merged


def zero_stage(config: LearnerConfig, *, bf16: bool) -> int:
    """The ZeRO stage in use. DeepSpeed's bfloat16 optimizer of stage 0 learns differently from
    those of the other stages (its first step lowers the loss by a fifth less), so stage 1 replaces
    it."""
    return max(config.zero_stage, 1) if bf16 else config.zero_stage


def user_config(given: dict[str, Any] | str) -> dict[str, Any]:
    """The user's DeepSpeed configuration, read from its JSON file if `given` is a path."""
    if not isinstance(given, str):
        return given
    path = Path(given).expanduser()
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"learner.deepspeed {path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"learner.deepspeed {path}: not valid JSON ({error})") from None
    if not isinstance(tree, dict):
        raise UserError(f"learner.deepspeed {path}: must be a JSON object of DeepSpeed settings")
    return tree


def learning_rate_share(config: LearnerConfig, step: int) -> float:
    """The learning rate of optimizer step `step` (from 0) as a share of `lr`.

    It rises linearly over `warmup_steps`, then stays, or falls to `min_lr_share` at `steps`.
    """
    if step < config.warmup_steps or config.schedule == "constant":
        return min(1.0, (step + 1) / max(config.warmup_steps, 1))
    span = max(config.steps - config.warmup_steps, 1)
    done = min((step - config.warmup_steps) / span, 1.0)
    falling = 1.0 - done if config.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2
    return config.min_lr_share + (1.0 - config.min_lr_share) * falling


def _ours(config: LearnerConfig, *, bf16: bool, gpu: bool) -> dict[str, Any]:
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
    ours = {
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
        ours["data_types"] = {"grad_accum_dtype": "fp32"}
    return ours


def _without_auto(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree without values of "auto", which Hugging Face's files leave to the trainer."""
    kept = {k: v for k, v in tree.items() if v != "auto"}
    return {k: _without_auto(v) if isinstance(v, dict) else v for k, v in kept.items()}


def _clashes(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """The user's owned keys whose values differ from ours."""
    known, found = flat_settings(ours), []
    for path, value in flat_settings(theirs).items():
        owner = next((o for o in OWNED if path == o or path.startswith(f"{o}.")), None)
        off = value is False and path.endswith(".enabled") and not known.get(path)
        adam = (
            path == "optimizer.type" and value == "Adam"
        )  # DeepSpeed's Adam decays weights as AdamW does
        same = adam or (path in known and known[path] == value)
        if owner is not None and value != {} and path not in FREE and not same and not off:
            found.append(f"{path}={json.dumps(value)} (use learner settings {OWNED[owner]})")
    return found


def _merge(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    both = dict(ours)
    for key, value in theirs.items():
        mine = both.get(key)
        both[key] = (
            _merge(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
        )
    return both
