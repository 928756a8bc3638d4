"""One run without the machinery: explore and learn in turns, in one process, on one thread.

    tasks ─► explore_group × B at once ─► rows_of ─► Trainer.step ─► weights to the sampler ─┐
      ▲                                                                                      │
      └──────────────── until the budget of sampled tokens is spent, then evaluate ◄─────────┘

A run that learns from stored groups gets its batches from a buffer service
(lab.results.buffered).

Everything but the transport is the product's own. One thing is missing from the sampler: it does
not constrain reflections to their schema, so one that does not parse leads to no retry.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from envs import TaskSource
from envs.registry import make, task_source
from lab.results.buffered import buffered
from lab.results.local_policy import LocalPolicy
from lab.results.taught import Guidance, taught
from learner.metrics.group_metrics import group_metrics
from learner.step.batch import Row, rows_of
from learner.step.trainer import Trainer
from r3l.algorithms.advantages import SUCCESS
from r3l.records import Group, GroupPlan, Task
from r3l.rollout.chat import ChatFormat
from r3l.rollout.group import explore_group
from r3l.rollout.policy_interface import Policy
from r3l.run.config import RunConfig

CURVES = ("success_base", "success_retry", "trigger_rate", "improvement_rate")
LEARNED = 0.95
"""A run without a budget of tokens ends when so many first attempts of WINDOW steps succeed."""
WINDOW = 5
DRAWS = 20
"""Draws of one step at most, while groups without contrast are replaced."""
Curve = dict[str, list[float | None]]


async def alternate(
    config: RunConfig,
    *,
    steps: int,
    tokens: int | None = None,
    lag: int = 0,
    teacher: Guidance = "",
    stored: bool = False,
) -> dict[str, Any]:
    """Train `config.model` until `tokens` tokens were sampled, attempts and reflections alike (the
    last step is finished), or, without such a budget, for `steps` optimizer steps or until its
    first attempts succeed. `lag`: steps by which the sampled policy is behind the trained one;
    `teacher`: whose reflections are used; `stored`: batches come from a buffer service.

    Returns what the held-out tasks showed, what was spent (`cpu`: seconds of this process without
    loading and evaluation) and the `curve`: for each step tokens, attempts and CPU seconds so far,
    shares of 1 of its attempts (None without attempts) and of its groups (`gated`: no retries)."""
    trainer = Trainer(
        Path(config.model), config.learner, config.algorithm.build(), seed=config.seed
    )
    policy = sampler(Path(config.model), config.seed)
    curve: Curve = {name: [] for name in ("tokens", "attempts", "cpu", "cut_off", "gated", *CURVES)}
    waiting: deque[dict[str, torch.Tensor]] = deque()
    attempts = spent = done = 0
    batched = buffered(config, teacher) if stored else nullcontext(Direct(config, teacher))
    with batched as batches:
        began = time.process_time()
        while spent < tokens if tokens is not None else done < steps and not _learned(curve):
            rows, groups = await batches.batch(policy, done, trainer)
            trainer.step(rows)
            waiting.append(full_weights(trainer))
            if len(waiting) > lag:
                load_weights(policy, waiting.popleft())
            done += 1
            batches.trained(done)
            attempts += sum(len(group.trajectories) for group in groups)
            spent += sum(group.generated_tokens for group in groups)
            seconds = round(time.process_time() - began, 1)
            for name, value in (("tokens", spent), ("attempts", attempts), ("cpu", seconds)):
                curve[name].append(value)
            curve["cut_off"].append(round(cut_off(groups), 4))
            curve["gated"].append(round(mean(not group.plan.distilled for group in groups), 4))
            metrics = group_metrics(groups)
            for name in CURVES:
                share = metrics.get(f"group/{name}")
                curve[name].append(None if share is None else round(share, 4))
    seconds = round(time.process_time() - began, 1)
    load_weights(policy, full_weights(trainer))
    cost = {"steps": done, "attempts": attempts, "tokens": spent, "cpu": seconds}
    return await evaluate(policy, config) | cost | {"curve": curve}


class Direct:
    """Batches of groups as they are explored; none is stored."""

    def __init__(self, config: RunConfig, teacher: Guidance = "") -> None:
        self.config, self.teacher = config, teacher
        self.source = task_source(config.env.name, **config.env.options)
        self.explored = 0

    async def batch(
        self, policy: Policy, version: int, trainer: Trainer
    ) -> tuple[list[Row], list[Group]]:
        """The rows of step `version` + 1, and the groups that were explored for it."""
        batch, groups = await fill_batch(
            self.source, self.explored, policy, self.config, teacher=self.teacher
        )
        self.explored += len(groups)
        return rows_of(batch, self.config.algorithm.build()), groups

    def trained(self, version: int) -> None:
        """The batch was trained, which made `version`."""


def _learned(curve: Curve) -> bool:
    recent = [share for share in curve["success_base"][-WINDOW:] if share is not None]
    return len(recent) == WINDOW and sum(recent) / WINDOW >= LEARNED


def cut_off(groups: Sequence[Group]) -> float:
    """The share of attempts that their environment did not end."""
    attempts = [one for group in groups for one in group.trajectories]
    return sum(one.finish != "terminated" for one in attempts) / max(1, len(attempts))


def sampler(model: Path, seed: int) -> LocalPolicy:
    """The policy of a model folder, in float32, sampling in this process."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    chat = ChatFormat(AutoTokenizer.from_pretrained(model))
    lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return LocalPolicy(lm.requires_grad_(False), chat, seed=seed)


def full_weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """A copy of the trainer's weights by name."""
    return {name: value.clone() for name, value in trainer.weights()}


def load_weights(policy: LocalPolicy, weights: Mapping[str, torch.Tensor]) -> None:
    """Give the sampler these weights, as its next version."""
    for name, mine in policy.model.named_parameters():
        mine.copy_(weights[name])
    policy.version += 1


async def fill_batch(
    source: TaskSource,
    explored: int,
    policy: Policy,
    config: RunConfig,
    *,
    teacher: Guidance = "",
) -> tuple[list[Group], list[Group]]:
    """The groups of one step, and all that were explored for it, after `explored` earlier ones.

    If the algorithm needs contrast, groups without it are replaced, as the buffer service does;
    after DRAWS draws the batch is what there is.
    """
    algorithm = config.algorithm
    plan, limit = algorithm.build().plan(), config.env.train_tasks
    batch, groups = list[Group](), list[Group]()
    for _ in range(DRAWS):
        missing = config.learner.groups_per_step - len(batch)
        first = (explored + len(groups)) % limit
        tasks = source.tasks("train", missing, config.seed, first)
        drawn = await explore(tasks, policy, config, plan, teacher=teacher)
        groups += drawn
        batch += [one for one in drawn if has_contrast(one) or not algorithm.needs_contrast]
        if not algorithm.needs_contrast or len(batch) == config.learner.groups_per_step:
            break
    check_played(groups)
    return batch, groups


def has_contrast(group: Group) -> bool:
    """Whether the rewards of a group differ."""
    return len(set(group.rewards.tolist())) > 1


async def explore(
    tasks: Sequence[Task],
    policy: Policy,
    config: RunConfig,
    plan: GroupPlan,
    *,
    teacher: Guidance = "",
) -> list[Group]:
    """Explore one group per task, all at once so that their requests are sampled together.

    `teacher`: whose reflections are used.
    """
    make_env = partial(make, config.env.name, **config.env.options)
    policies = [taught(policy, task, make_env, teacher) for task in tasks]
    results = await asyncio.gather(
        *(
            explore_group(task, mine, make_env, config, plan=plan)
            for task, mine in zip(tasks, policies, strict=True)
        )
    )
    return [
        Group(f"group-{number}", task, plan, "complete", tuple(slots))
        for number, (task, slots) in enumerate(zip(tasks, results, strict=True))
    ]


def check_played(groups: Sequence[Group]) -> None:
    """Raise RuntimeError when not one attempt could be played."""
    if not any(group.trajectories for group in groups):
        causes = sorted({result.cause for group in groups for result in group.results})
        raise RuntimeError(f"no attempt could be played: {', '.join(causes)}")


async def evaluate(policy: Policy, config: RunConfig) -> dict[str, float]:
    """One attempt at each held-out task: success and mean reward; an attempt that failed to be
    played counts as lost."""
    config = config.for_evaluation()
    source = task_source(config.env.name, **config.env.options)
    tasks = source.tasks("eval", config.eval.tasks)
    groups = await explore(tasks, policy, config, GroupPlan(1))
    check_played(groups)
    rewards = [one.reward for group in groups for one in group.trajectories]
    return {
        "success": sum(reward >= SUCCESS for reward in rewards) / len(tasks),
        "reward": sum(rewards) / len(tasks),
    }
