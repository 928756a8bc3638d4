"""The quality of the shipped policy."""

import torch
from transformers import AutoModelForCausalLM

from envs.builtin.policy import builtin_policy
from learner.warmup.local_policy import LocalPolicy
from learner.warmup.quality import measure


def test_the_shipped_policy_reads_reflects_and_follows_advice_but_does_not_know_the_world(chat):
    model = AutoModelForCausalLM.from_pretrained(builtin_policy(), dtype=torch.float32)
    quality = measure(LocalPolicy(model, chat), "workshop", 64, {})
    assert quality.success <= 0.05
    assert quality.reward == quality.success  # rewards are 0 or 1
    assert quality.parsed >= 0.85
    assert quality.pivots >= 0.7
    assert quality.guided >= quality.restart + 0.15
    assert quality.told >= 0.8  # 0.89 on average, with a standard deviation of 0.04
    assert 1.5 <= quality.reflection_cost <= 3.5
