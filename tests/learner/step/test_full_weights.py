"""Whole models under ZeRO 3: no rank holds more than a parameter of them at a time."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from learner.step.deepspeed_trainer import DeepSpeedTrainer
from r3l.weights.sums import add_sums, sums_of
from tests.learner.fakes import measured
from tests.learner.ranks import on_two_ranks
from tests.learner.step import sharing
from tests.r3l.training.fakes import tiny_folder

LARGER = {  # its largest parameter is one of many
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


@pytest.mark.system
def test_two_ranks_under_zero_3_gather_publish_and_save_in_little_memory_with_one_ranks_losses(
    tmp_path: Path,
) -> None:
    model = tiny_folder(tmp_path / "model", **LARGER)
    on_two_ranks(sharing.watch, tmp_path, model)
    config = sharing.work(stage=0)
    alone = DeepSpeedTrainer(model, config.learner, needs=config.algorithm.needs)
    rows = sharing.rows_of(config, alone)
    steps = [measured(alone.step(rows, config.algorithm.loss)) for _ in range(2)]
    for rank in range(2):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        assert seen["all"] > 40 << 20
        for work in ("gather", "save"):
            assert seen[work] < seen["all"] / 3, work
        assert seen["refused"] == (rank == 0)  # and the other rank waited for nothing
        assert seen["held"] == 0  # of the reference, outside a forward pass
        for ours, theirs in zip(seen["steps"], steps, strict=True):
            for key in ("loss", "kl_reference", "entropy"):
                assert ours[key] == pytest.approx(theirs[key], rel=1e-4, abs=1e-6), key
    assert steps[1]["kl_reference"] > 0.01
    published = json.loads((tmp_path / "0.json").read_text())["sums"]
    before, after = (AutoModelForCausalLM.from_pretrained(f) for f in (model, tmp_path / "saved"))
    for (name, ours), theirs in zip(before.named_parameters(), after.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    saved = [one.detach().view(-1).view(torch.uint8).numpy() for one in after.parameters()]
    assert tuple(published) == add_sums(sums_of(data, "float32") for data in saved)
