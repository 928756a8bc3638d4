"""The learner's benchmark: its baseline computes the same, its workload is what it says."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.learner import full_logits, synthetic
from r3l.training.micro_batch import collate
from r3l.training.model import PolicyModule
from tests.r3l.training.fakes import made_row

CPU = torch.device("cpu")


def test_the_baseline_computes_the_log_probabilities_it_is_compared_for() -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=8192,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    module = PolicyModule(Qwen2ForCausalLM(config))
    one, other, third = synthetic(0.5, length=64)[:3]
    short = made_row(third.token_ids[:44], third.mask[:44])
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
