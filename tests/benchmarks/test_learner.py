"""The learner's benchmark: its ways compute the same, its workload is what it says."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.learner import WAYS, full_logits, random_model, row_of, synthetic
from r3l.run.config import load
from r3l.training.micro_batch import collate
from r3l.training.model import PolicyModule

CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 8192,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def test_the_baseline_computes_the_log_probabilities_it_is_compared_for() -> None:
    torch.manual_seed(0)
    module = PolicyModule(Qwen2ForCausalLM(Qwen2Config(**SHAPE)))
    one, other, third = synthetic(0.5, length=64)[:3]
    short = row_of(third.token_ids[:44], third.mask[:44], third.old_logprobs[:44])
    micro = collate([one, other, short], CPU)
    ours, _ = module(micro.nodes, micro.mask_BT, micro.temperatures_B)
    theirs, _ = full_logits(module, micro.nodes, micro.mask_BT, micro.temperatures_B)
    assert torch.allclose(ours, theirs, atol=1e-5) and ours[2].any()


@pytest.mark.parametrize("shared", [0.0, 0.25, 0.5])
def test_synthetic_rows_share_what_was_asked_and_train_behind_it(shared: float) -> None:
    rows = synthetic(shared, length=64)
    nodes = collate(rows, CPU).nodes.token_ids_N.numel()
    start = int(64 * shared)
    assert start + 8 * (64 - start) - 8 <= nodes <= start + 8 * (64 - start)
    assert all(row.mask.any() and not row.mask[: max(start, 1)].any() for row in rows)


def test_all_ways_make_the_same_step(tmp_path: Path) -> None:
    rows = synthetic(0.5, length=64)
    moved = []
    for way in WAYS:
        trainers = random_model(tmp_path / way, SHAPE, load(None, ["learner.lr=1e-3"]), plain=True)
        assert trainers.plain is not None
        before, trained = trainers.plain.weights(), trainers.deepspeed
        trainers.step(way, rows)
        after = trainers.plain.weights() if way == "plain" else dict(trained.weights())
        moved.append(torch.cat([(after[name] - before[name]).flatten() for name in before]))
    assert moved[0].any() and all(torch.allclose(moved[0], other, atol=2e-5) for other in moved)
