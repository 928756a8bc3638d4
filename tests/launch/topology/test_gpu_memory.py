"""The estimate of memory, by hand for a model of 7.6 billion parameters."""

import importlib
import json
from pathlib import Path

import pytest

from launch.topology.gpu_memory import MemoryEstimate, ModelShape, arithmetic, model_shape, total
from r3l.models.model_path import builtin_policy
from r3l.run.config import load

SEVEN = ModelShape(7_615_616_512, 28, 3584, 4, 128, 152_064, 18_944)  # Qwen2.5-7B


def estimate(*overrides: str, **needs: bool) -> MemoryEstimate:
    config = load(None, ["actor.max_model_len=8192", *overrides])
    return MemoryEstimate(SEVEN, config.learner, config.actor, **needs)


GIB_PARAMETERS = SEVEN.parameters / 2**30


def test_a_rank_of_eight_at_stage_1_holds_an_eighth_of_the_optimizer() -> None:
    needs = estimate().learner_needs(8)
    assert needs == pytest.approx(
        {"weights": 2 * GIB_PARAMETERS, "gradients": 6 * GIB_PARAMETERS,
         "optimizer": 12 * GIB_PARAMETERS / 8}
    )  # fmt: skip
    assert needs["weights"] == pytest.approx(14.18, abs=0.01)


def test_an_average_of_the_weights_is_in_full_precision_and_on_every_rank() -> None:
    needs = estimate("learner.zero_stage=2", averaged=True).learner_needs(8)
    assert needs["averaged"] == pytest.approx(4 * GIB_PARAMETERS)
    adapted = estimate("learner.lora={rank: 8}", averaged=True).learner_needs(8)
    assert adapted["averaged"] == pytest.approx(4 * 8 * 20 * 3584 * 28 / 2**30)


def test_stages_2_and_3_need_what_deepspeed_says_and_its_buffer() -> None:
    zero2 = importlib.import_module("deepspeed.runtime.zero.stage_1_and_2")
    zero3 = importlib.import_module("deepspeed.runtime.zero.stage3")
    model, embedding = SEVEN.parameters, 152_064 * 3584

    def ours(*settings: str) -> float:
        return total(estimate(*settings).learner_needs(16))

    for offload in (False, True):
        asked = f"learner.offload={'optimizer' if offload else 'none'}"
        _, two = zero2.estimate_zero2_model_states_mem_needs(model, 8, 2, cpu_offload=offload)
        assert ours("learner.zero_stage=2", asked) == pytest.approx(two / 2**30)
        _, three, _ = zero3.estimate_zero3_model_states_mem_needs(
            model, embedding, 8, 2, cpu_offload=offload, cpu_offload_params=False
        )
        assert ours("learner.zero_stage=3", asked) == pytest.approx((three + 1e9) / 2**30)
    _, three, _ = zero3.estimate_zero3_model_states_mem_needs(model, embedding, 8, 2)
    assert ours("learner.zero_stage=3", "learner.offload=all") == pytest.approx(
        (three + 1e9) / 2**30
    )


def test_activations_are_those_that_a_gpu_showed() -> None:
    """The peak above 20 bytes a parameter, and above what the engine holds at stage 3 and with
    adapters (lab/lines/gpu.jsonl), of micro-batches that were measured."""
    half = ModelShape(494_032_768, 24, 896, 2, 64, 151_936, 4864)
    larger = ModelShape(1_543_714_304, 28, 1536, 2, 128, 151_936, 8960)
    for shape, tokens, held, peak, settings in (
        (half, 4608, 9.2, 18.34, ()),
        (half, 32256, 9.2, 56.19, ()),
        (larger, 4608, 28.75, 45.14, ()),
        (larger, 13824, 28.75, 72.24, ()),
        (larger, 4608, 26.87, 43.19, ()),
        (SEVEN, 8192, 15.0, 19.05, ("learner.gradient_checkpointing=true",)),
    ):
        config = load(None, [f"learner.tokens_per_micro_batch={tokens}", *settings])
        estimated = MemoryEstimate(shape, config.learner, config.actor).activations()
        assert held + estimated == pytest.approx(peak, rel=0.03)


def test_a_kl_term_needs_the_weights_of_a_reference_too() -> None:
    kl = estimate("learner.zero_stage=3", reference=True).learner_needs(8)
    assert kl["reference"] == kl["weights"] == pytest.approx(2 * GIB_PARAMETERS / 8)


def test_adapters_alone_have_gradients_and_an_optimizer() -> None:
    needs = estimate("learner.lora.rank=16").learner_needs(1)
    adapters = 16 * 20 * 3584 * 28 / 2**30
    assert needs["gradients"] == pytest.approx(6 * adapters)
    assert needs["optimizer"] == pytest.approx(12 * adapters) and needs["weights"] > 14


def test_keys_and_values_of_a_request_are_split_over_the_gpus_of_an_actor() -> None:
    one = estimate().actor_needs(1, 10)
    # 2 tensors x 2 bytes x 28 layers x 4 heads x 128, for 10 requests of 8192 tokens
    assert one["KV"] == pytest.approx(2 * 2 * 28 * 4 * 128 * 10 * 8192 / 2**30)
    assert estimate().actor_needs(4, 10)["KV"] == pytest.approx(one["KV"] / 4)
    assert estimate().actor_needs(8, 10)["KV"] == pytest.approx(one["KV"] / 4), "4 heads"
    held = estimate().requests_held(1, 40.0)
    assert total(estimate().actor_needs(1, held)) <= 40 < total(estimate().actor_needs(1, held + 1))
    given = estimate(f"actor.engine.kv_cache_memory_bytes={1 << 30}")
    assert given.actor_needs(1, 99)["KV"] == 1.0 and given.requests_held(1, 40.0) == 2


def test_the_arithmetic_reads_as_a_sum() -> None:
    assert arithmetic({"weights": 14.18, "fixed": 2.0}) == "14.2 weights + 2.0 fixed = 16.2 GiB"


def test_the_shape_comes_from_the_models_folder(tmp_path: Path) -> None:
    shape = model_shape(builtin_policy())
    assert shape is not None and shape.layers > 0 and shape.parameters > 10_000
    settings = json.loads((builtin_policy() / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert model_shape(tmp_path) is None, "without weights"
