"""One run without the machinery: explore and learn in turns, in one process, on one thread.

    tasks ─► explore_group × B at once ─► rows_of ─► Trainer.step ─► weights to the sampler ─┐
      ▲                                                                                      │
      └──────────────── until the budget of sampled tokens is spent, then evaluate ◄─────────┘

Everything but the transport is the product's own. One thing is missing from the sampler: it does
not constrain reflections to their schema, so one that does not parse leads to no retry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from envs.registry import make, task_source
from learner.metrics.group_metrics import group_metrics
from learner.step.batch import rows_of
from learner.step.trainer import Trainer
from learner.warmup.tiny_policy import LocalPolicy
from r3l.algorithms.advantages import SUCCESS
from r3l.config import RunConfig
from r3l.records import Group, GroupPlan, Task
from r3l.rollout.chat import ChatFormat
from r3l.rollout.group import explore_group
from r3l.rollout.interfaces import Policy

CURVES = ("success_base", "trigger_rate", "improvement_rate")


async def alternate(config: RunConfig, tokens: int) -> dict[str, Any]:
    """Train `config.model` until `tokens` tokens were sampled, attempts and reflections alike;
    the last step is finished. Returns what the held-out tasks showed, what was spent
    (`seconds` without loading and evaluation) and the `curve`: for each step the tokens sampled
    so far, and shares of 1 of its attempts (None without attempts)."""
    algorithm = config.algorithm.build()
    trainer = Trainer(Path(config.model), config.learner, algorithm, seed=config.seed)
    policy = sampler(Path(config.model), config.seed)
    source = task_source(config.env.name, **config.env.options)
    count, limit = config.learner.groups_per_step, config.env.train_tasks
    curve: list[dict[str, float | None]] = []
    attempts = spent = 0
    began = time.monotonic()
    while spent < tokens:
        first = len(curve) * count % limit
        tasks = source.tasks("train", count, config.seed, first)
        groups = await explore(tasks, policy, config, algorithm.plan())
        trainer.step(rows_of(groups, algorithm))
        copy_weights(trainer, policy)
        attempts += sum(len(group.trajectories) for group in groups)
        spent += sum(group.generated_tokens for group in groups)
        metrics = group_metrics(groups)
        shares = {name: metrics.get(f"group/{name}") for name in CURVES}
        curve.append({"tokens": spent} | shares)
    seconds = time.monotonic() - began
    cost = {"steps": len(curve), "attempts": attempts, "tokens": spent, "seconds": round(seconds)}
    return await evaluate(policy, config) | cost | {"curve": curve}


def sampler(model: Path, seed: int) -> LocalPolicy:
    """The policy of a model folder, in float32, sampling in this process."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    chat = ChatFormat(AutoTokenizer.from_pretrained(model))
    lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return LocalPolicy(lm.requires_grad_(False), chat, seed=seed)


def copy_weights(trainer: Trainer, policy: LocalPolicy) -> None:
    """Give the sampler the trainer's weights, as its next version."""
    with trainer.full_weights() as weights:
        pairs = zip(policy.model.named_parameters(), weights, strict=True)
        for (name, mine), (theirs, value) in pairs:
            if name != theirs:
                raise RuntimeError(f"the trainer calls {name} {theirs}")
            mine.copy_(value)
    policy.version += 1


async def explore(
    tasks: Sequence[Task], policy: Policy, config: RunConfig, plan: GroupPlan
) -> list[Group]:
    """Explore one group per task, all at once so that their requests are sampled together.

    Raises RuntimeError when not one attempt could be played.
    """
    make_env = partial(make, config.env.name, **config.env.options)
    results = await asyncio.gather(
        *(explore_group(task, policy, make_env, config, plan=plan) for task in tasks)
    )
    groups = [
        Group(f"group-{number}", task, plan, "complete", tuple(slots))
        for number, (task, slots) in enumerate(zip(tasks, results, strict=True))
    ]
    if not any(group.trajectories for group in groups):
        causes = sorted({result.cause for slots in results for result in slots})
        raise RuntimeError(f"no attempt could be played: {', '.join(causes)}")
    return groups


async def evaluate(policy: Policy, config: RunConfig) -> dict[str, float]:
    """One attempt at each held-out task: success and mean reward; an attempt that failed to be
    played counts as lost."""
    actor = config.actor.model_copy(update={"temperature": config.eval.temperature})
    config = config.model_copy(update={"actor": actor})
    source = task_source(config.env.name, **config.env.options)
    tasks = source.tasks("eval", config.eval.tasks)
    groups = await explore(tasks, policy, config, GroupPlan(1))
    rewards = [one.reward for group in groups for one in group.trajectories]
    return {
        "success": sum(reward >= SUCCESS for reward in rewards) / len(tasks),
        "reward": sum(rewards) / len(tasks),
    }
