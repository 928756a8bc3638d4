"""Weights have the names and shapes that config.json asks for, in the common families of models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from r3l.errors import UserError
from r3l.models.weight_shapes import Shapes, check_shapes

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 256}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"num_experts": 4, "moe_intermediate_size": 16, "mlp_only_layers": [1]}
FAMILIES = (
    "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text gemma4_text qwen3_moe qwen3_next mixtral "
    "deepseek_v3 glm4_moe gpt2 gpt_neox gpt_oss olmo olmo2 cohere2 opt bloom phi mamba lfm2 jamba"
).split()
Made = tuple[dict[str, Any], Shapes]


def made(kind: str, **more: Any) -> Made:
    """The config.json and the tensors of a small model, without those that are tied."""
    experts = EXPERTS if kind == "qwen3_moe" else {}
    config = AutoConfig.for_model(kind, **SIZES | HEADS | experts | more)
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config)
    tied = set(lm.all_tied_weights_keys)
    shapes = {name: list(t.shape) for name, t in lm.state_dict().items() if name not in tied}
    return config.to_dict(), shapes


def refused(settings: dict[str, Any], shapes: Shapes) -> str:
    try:
        check_shapes(settings, shapes, "model mine", plain=True)
    except UserError as error:
        assert str(error).startswith("model mine: ") and "; copy config.json" in str(error)
        return str(error)
    return ""


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_weights_of_a_whole_model_are_taken(kind: str) -> None:
    assert refused(*made(kind)) == ""


def without(wanted: str) -> Callable[[Made], Made]:
    return lambda of: (of[0], {name: s for name, s in of[1].items() if name != wanted})


def shaped(changed: str, shape: list[int]) -> Callable[[Made], Made]:
    return lambda of: (of[0], of[1] | {changed: shape})


def renamed(old: str, new: str) -> Callable[[Made], Made]:
    return lambda of: (of[0], {name.replace(old, new): s for name, s in of[1].items()})


UP = "mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without(f"model.layers.0.{UP}"), f"lack model.layers.0.{UP}, which all other"),
        (without("model.layers.3.self_attn.q_proj.bias"), "lack model.layers.3.self_attn.q_proj"),
        (without("model.norm.weight"), "lack the norm after the last layer"),
        (without("model.embed_tokens.weight"), "lack the embedding"),
        (shaped(f"model.layers.2.{UP}", [3, 3]), f"2.{UP} has the shape [3, 3], and in all other"),
        (shaped("model.layers.1.self_attn.k_proj.bias", [8]), "has the shape [8]"),
        (lambda of: (of[0] | {"hidden_size": 32}, of[1]), "config.json has a hidden_size of 32"),
        (lambda of: (of[0] | {"num_hidden_layers": 3}, of[1]), "have model.layers.3 too"),
        (lambda of: (of[0] | {"num_hidden_layers": 5}, of[1]), "lack layer 4"),
        (lambda of: ({"text_config": of[0] | {"num_hidden_layers": 3}}, of[1]), "layers.3 too"),
        (shaped("lm_head.weight", [256, 64]), ""),
        (renamed("model.", ""), ""),
        (renamed("model.", "model.language_model."), ""),
        (shaped("model.layers.0.self_attn.rotary_emb.inv_freq", [8]), ""),
        (shaped("model.visual.blocks.31.norm.weight", [9]), ""),
        (lambda of: (of[0], of[1] | {"model.layers.4.eh_proj.weight": [64, 128]}), ""),
    ],
)
def test_weights_that_are_not_whole_are_refused(
    change: Callable[[Made], Made], reason: str
) -> None:
    found = refused(*change(made("qwen2", tie_word_embeddings=True)))
    assert reason in found and bool(found) == bool(reason)
