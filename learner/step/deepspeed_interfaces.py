"""The interfaces of DeepSpeed that the learner uses, private ones in checkpoints too."""

from __future__ import annotations

from r3l.process.library_check import check_library

KNOWN = "0.19.8"
ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
ZERO_3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
USED = (
    "deepspeed:initialize(model, model_parameters, config)",
    "deepspeed:init_distributed(dist_backend, verbose, timeout)",
    "deepspeed:zero.Init(module, config_dict_or_path)",
    "deepspeed:zero.GatheredParameters(enabled)",
    "deepspeed.ops:__compatible_ops__",
    f"{ENGINE}.backward",
    f"{ENGINE}.step",
    f"{ENGINE}.zero_grad",
    f"{ENGINE}.set_gradient_accumulation_boundary",
    f"{ENGINE}.was_step_applied",
    f"{ENGINE}.get_global_grad_norm",
    "deepspeed.runtime.zero.stage_1_and_2:~single_partition_of_fp32_groups",
    "deepspeed.runtime.bf16_optimizer:~fp32_groups_flat_partition",
    "deepspeed.utils.mixed_precision_linkage:~_hp_mapping",
    "deepspeed.utils.tensor_fragment:~hp_fragment_address",
    "deepspeed.utils.tensor_fragment:~lp_fragment_address",
    "deepspeed.utils.tensor_fragment:~param_group_index",
    "deepspeed.runtime.zero.partition_parameters:~ds_id",
    f"{ZERO_3}.get_param_id",
    f"{ZERO_3}~fp32_partitioned_groups_flat",
    f"{ZERO_3}~grad_position",
)


def check_deepspeed() -> None:
    """Raise UserError if the installed DeepSpeed lacks an interface. Imports DeepSpeed."""
    check_library(("deepspeed",), KNOWN, USED)
