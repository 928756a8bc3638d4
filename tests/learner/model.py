"""Small models for the learner's tests, and what their steps measured."""

from pathlib import Path

import torch

from learner.step.trainer import StepResult
from learner.warmup import tiny_policy


def tiny_model(folder: Path) -> Path:
    """A random model of some 100 000 parameters with a tokenizer and a chat template."""
    tokenizer = tiny_policy.build_tokenizer(["use brush on tin"])
    tiny_policy.build_model(tokenizer, seed=0, hidden=64, layers=2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    torch.set_num_threads(1)
    return folder


def measured(result: StepResult) -> dict[str, float]:
    """A step as plain numbers, names without their prefix."""
    metrics = {tag.removeprefix("learner/"): value for tag, value in result.metrics.items()}
    return metrics | {"applied": result.applied, "out_of_memory": result.out_of_memory}
