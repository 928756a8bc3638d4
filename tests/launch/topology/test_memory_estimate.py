"""The estimate of memory, by hand for a model of 7.6 billion parameters."""

import json
from pathlib import Path

import pytest

from envs.builtin.policy import builtin_policy
from launch.topology.memory_estimate import Estimate, ModelShape, arithmetic, model_shape, total
from r3l.config import load

SEVEN = ModelShape(7_615_616_512, 28, 3584, 4, 128, 152_064)  # Qwen2.5-7B


def estimate(*overrides: str, reference: bool = False) -> Estimate:
    config = load(None, ["actor.max_model_len=8192", *overrides])
    return Estimate(SEVEN, config.learner, config.actor, reference)


def test_a_rank_of_eight_at_stage_1_holds_an_eighth_of_the_optimizer() -> None:
    parts = estimate().learner_parts(8)
    gib = 7_615_616_512 / 2**30
    assert parts["weights"] == pytest.approx(2 * gib) == pytest.approx(14.18, abs=0.01)
    assert parts["gradients"] == pytest.approx(6 * gib)
    assert parts["optimizer"] == pytest.approx(12 * gib / 8)
    # 8192 tokens x 28 layers x 17 numbers of 2 bytes x 3584
    assert parts["activations"] == pytest.approx(8192 * 28 * 34 * 3584 / 2**30)
    assert parts["logits"] == pytest.approx(12 * 152_064 * 1024 / 2**30)
    assert parts["fixed"] == 2.0 and total(parts) == pytest.approx(sum(parts.values()))


def test_stages_2_and_3_split_gradients_and_weights_too() -> None:
    gib = 7_615_616_512 / 2**30
    two, three = (estimate(f"learner.zero_stage={z}").learner_parts(8) for z in (2, 3))
    assert two["gradients"] == pytest.approx(6 * gib / 8) and two["weights"] > 14
    assert three["weights"] == pytest.approx(2 * gib / 8)
    kl = estimate("learner.zero_stage=3", reference=True).learner_parts(8)
    assert kl["reference"] == pytest.approx(2 * gib / 8)


def test_adapters_alone_have_gradients_and_an_optimizer() -> None:
    parts = estimate("learner.lora.rank=16").learner_parts(1)
    adapters = 16 * 20 * 3584 * 28 / 2**30
    assert parts["gradients"] == pytest.approx(6 * adapters)
    assert parts["optimizer"] == pytest.approx(12 * adapters) and parts["weights"] > 14


def test_checkpointing_keeps_a_layers_input_and_one_layer_in_full() -> None:
    parts = estimate("learner.gradient_checkpointing=true").learner_parts(1)
    assert parts["activations"] == pytest.approx(8192 * 2 * 3584 * (28 + 17) / 2**30)


def test_what_is_offloaded_is_not_on_the_gpu() -> None:
    parts = estimate("learner.offload=all", "learner.zero_stage=3").learner_parts(8)
    assert "weights" not in parts and "optimizer" not in parts


def test_keys_and_values_of_a_request_are_split_over_the_gpus_of_an_actor() -> None:
    one = estimate().actor_parts(1, 10)
    # 2 tensors x 2 bytes x 28 layers x 4 heads x 128, for 10 requests of 8192 tokens
    assert one["KV"] == pytest.approx(2 * 2 * 28 * 4 * 128 * 10 * 8192 / 2**30)
    assert estimate().actor_parts(4, 10)["KV"] == pytest.approx(one["KV"] / 4)
    assert estimate().actor_parts(8, 10)["KV"] == pytest.approx(one["KV"] / 4), "4 heads"
    held = estimate().requests_held(1, 40.0)
    assert total(estimate().actor_parts(1, held)) <= 40 < total(estimate().actor_parts(1, held + 1))
    given = estimate(f"actor.engine.kv_cache_memory_bytes={1 << 30}")
    assert given.actor_parts(1, 99)["KV"] == 1.0 and given.requests_held(1, 40.0) == 2


def test_the_arithmetic_reads_as_a_sum() -> None:
    assert arithmetic({"weights": 14.18, "fixed": 2.0}) == "14.2 weights + 2.0 fixed = 16.2 GiB"


def test_the_shape_comes_from_the_models_folder(tmp_path: Path) -> None:
    shape = model_shape(builtin_policy())
    assert shape is not None and shape.layers > 0 and shape.parameters > 10_000
    settings = json.loads((builtin_policy() / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert model_shape(tmp_path) is None, "without weights"
