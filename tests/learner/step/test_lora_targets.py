"""The layers of a model folder that can have an adapter."""

from pathlib import Path

import pytest

from learner.step.lora_targets import check_targets, linear_layers
from r3l.errors import UserError
from r3l.run.settings.learner import LoraConfig


def test_linear_layers_are_the_matrices_of_the_blocks(model_folder: Path) -> None:
    attention = {f"{name}_proj" for name in "qkvo"}
    assert set(linear_layers(model_folder)) == attention | {"gate_proj", "up_proj", "down_proj"}


def test_a_target_that_the_model_has_not_is_refused_in_one_line(model_folder: Path) -> None:
    check_targets(LoraConfig(rank=2, targets=("q_proj", "up_proj")), model_folder)
    with pytest.raises(UserError) as refused:
        check_targets(LoraConfig(rank=2, targets=("q_proj", "q_poj")), model_folder)
    said = str(refused.value)
    assert said.startswith("learner.lora.targets: ") and "'q_poj' (did you mean q_proj?)" in said
    assert said.endswith(" down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj")
    for other in ("lm_head", "embed_tokens", "input_layernorm"):
        with pytest.raises(UserError, match="has no layer"):
            check_targets(LoraConfig(rank=2, targets=(other,)), model_folder)


def test_weights_that_are_not_in_safetensors_files_are_not_looked_into(tmp_path: Path) -> None:
    check_targets(LoraConfig(rank=2, targets=("c_attn",)), tmp_path)
