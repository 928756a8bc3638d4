"""One run without services: explore and learn in turns, in one process, on one thread.

    tasks ─► explore × B at once ─► Memory.fill ─► rows ─► Trainer.step ─► LocalPolicy.load ─┐
      ▲                                                                                      │
      └──────────────── until the budget of sampled tokens is spent, then evaluate ◄─────────┘

A run that learns from stored groups gets its batches from a buffer service
(lab.results.buffered).
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import cycle
from statistics import mean
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from envs import exploring, registry
from lab.results.buffered import buffered
from lab.results.taught import Guidance, taught
from learner.metrics.group_metrics import group_metrics
from learner.step.deepspeed_config import learning_rate_share
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.records import SUCCESS, Group, Task
from r3l.rollout.policy_interface import Policy, Sample, SampleParams
from r3l.run.config import RunConfig
from r3l.training.averaged_weights import DECAY
from r3l.training.group_memory import Memory
from r3l.training.local_policy import LocalPolicy
from r3l.training.step_loss import StepResult
from r3l.training.trainer import Trainer

CURVES = ("success_base", "success_retry", "trigger_rate", "improvement_rate")
LEARNED = 0.95
"""A run without a budget of tokens ends when so many first attempts of WINDOW steps succeed."""
WINDOW = 5
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
    """Trains `config.model` until `tokens` tokens were sampled, attempts and reflections alike (the
    last step is finished), or, without such a budget, for `steps` optimizer steps or until its
    first attempts succeed. `lag`: steps by which the sampled policy is behind the trained one;
    `teacher`: whose reflections are used; `stored`: batches come from a buffer service.

    Returns what the held-out tasks showed, what was spent (`cpu`: seconds of this process without
    loading and evaluation) and the `curve`: for each step tokens, attempts and CPU seconds so far,
    shares of 1 of its attempts (None without attempts) and of its groups (`gated`: no retries)."""
    learner = Learner(config, lag)
    curve: Curve = {name: [] for name in ("tokens", "attempts", "cpu", "cut_off", "gated", *CURVES)}
    attempts = spent = done = 0
    batched = buffered(config, teacher) if stored else nullcontext(Direct(config, teacher))
    with batched as batches:
        began = time.process_time()
        while spent < tokens if tokens is not None else done < steps and not _learned(curve):
            batch, groups = await batches.batch(learner.policy, done)
            learner.learn(batch)
            done += 1
            batches.trained(done)
            attempts += sum(len(group.trajectories) for group in groups)
            spent += sum(group.generated_tokens for group in groups)
            seconds = round(time.process_time() - began, 1)
            for name, value in (("tokens", spent), ("attempts", attempts), ("cpu", seconds)):
                curve[name].append(value)
            curve["cut_off"].append(round(cut_off(groups), 4))
            curve["gated"].append(round(mean(not has_retries(group) for group in groups), 4))
            metrics = group_metrics(groups)
            for name in CURVES:
                share = metrics.get(f"group/{name}")
                curve[name].append(None if share is None else round(share, 4))
    seconds = round(time.process_time() - began, 1)
    learner.catch_up()
    cost = {"steps": done, "attempts": attempts, "tokens": spent, "cpu": seconds}
    return await evaluate(learner.policy, config) | cost | {"curve": curve}


class FreePolicy(LocalPolicy):
    """Samples without JSON schemas, as the stored runs were made: a reflection that does not parse
    leads to no retry."""

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Samples one response."""
        return await super().sample(token_ids, replace(params, json_schema=None))


class Learner:
    """The trainer of a run, and the policy that gets its weights `lag` steps later."""

    def __init__(self, config: RunConfig, lag: int = 0) -> None:
        self.algorithm, self.lag = config.algorithm, lag
        self.policy = FreePolicy(config.model, seed=config.seed)
        self.trainer = trainer_of(config)
        self.rates = LambdaLR(self.trainer.optimizer, partial(learning_rate_share, config.learner))
        self.waiting: deque[dict[str, Tensor]] = deque()

    def learn(self, batch: Batch) -> StepResult:
        """Makes one optimizer step."""
        batch = replace(batch, chat=lambda: self.policy.chat)
        batch = self.trainer.answer(batch, self.algorithm.queries(batch))
        result = self.trainer.step(self.algorithm.rows(batch), self.algorithm.loss)
        if result.applied:
            self.rates.step()
        self.waiting.append(self.trainer.weights())
        if len(self.waiting) > self.lag:
            self.policy.load(self.waiting.popleft())
        return result

    def catch_up(self) -> None:
        """Gives the policy the trainer's weights."""
        self.policy.load(self.trainer.weights())


def trainer_of(config: RunConfig) -> Trainer:
    """Returns a trainer with the settings of a run."""
    learner = config.learner
    return Trainer(
        config.model,
        lr=learner.lr,
        grad_clip=learner.grad_clip,
        weight_decay=learner.weight_decay,
        betas=learner.betas,
        tokens_per_micro_batch=learner.tokens_per_micro_batch,
        needs=config.algorithm.needs,
        average_decay=float(getattr(config.algorithm, "average_decay", DECAY)),
        seed=config.seed,
    )


class Direct:
    """Batches of groups as they are explored; none is used again."""

    def __init__(self, config: RunConfig, teacher: Guidance = "") -> None:
        self.config, self.teacher, self.memory = config, teacher, Memory(config.seed)
        env = config.env
        count, seed = env.train_tasks, config.seed
        self.tasks = cycle(exploring.tasks(env.name, count, seed=seed, options=env.options))

    async def batch(self, policy: Policy, version: int) -> tuple[Batch, list[Group]]:
        """Returns the batch of step `version` + 1, and the groups that were explored for it."""
        algorithm, count = self.config.algorithm, self.config.learner.groups_per_step
        explore = explorer(algorithm, policy, self.config, self.teacher, self.memory)
        batch, refused = await self.memory.fill(algorithm, self.tasks, explore, count)
        groups = [*batch.groups, *refused]
        check_played(groups)
        return batch, groups

    def trained(self, version: int) -> None:
        """Notes that the batch was trained, which made `version`."""
        self.memory.version = version


def _learned(curve: Curve) -> bool:
    recent = [share for share in curve["success_base"][-WINDOW:] if share is not None]
    return len(recent) == WINDOW and sum(recent) / WINDOW >= LEARNED


def has_retries(group: Group) -> bool:
    """Whether slots of a group are for retries."""
    return any(result.of >= 0 for result in group.results)


def cut_off(groups: Sequence[Group]) -> float:
    """Returns the share of attempts that their environment did not end."""
    attempts = [one for group in groups for one in group.trajectories]
    return sum(one.finish != "terminated" for one in attempts) / max(1, len(attempts))


def explorer(
    algorithm: Algorithm,
    policy: Policy,
    config: RunConfig,
    teacher: Guidance = "",
    memory: Memory | None = None,
) -> Callable[[Task], Awaitable[Group]]:
    """Returns what explores one group of a task in a run's environment. `teacher`: whose
    reflections are used."""
    make_env = partial(registry.make, config.env.name, **config.env.options)

    def explore(task: Task) -> Awaitable[Group]:
        own = taught(policy, task, make_env, teacher)
        decoding = config.actor.decoding()
        return exploring.explore(algorithm, task, own, make_env, decoding=decoding, memory=memory)

    return explore


def check_played(groups: Sequence[Group]) -> None:
    """Raises RuntimeError if not one attempt could be played."""
    if not any(group.trajectories for group in groups):
        causes = sorted({result.cause for group in groups for result in group.results})
        raise RuntimeError(f"no attempt could be played: {', '.join(causes)}")


async def evaluate(policy: Policy, config: RunConfig) -> dict[str, float]:
    """Plays one attempt at each held-out task. Returns success and mean reward; an attempt that
    failed to be played counts as lost."""
    env = config.env
    tasks = exploring.tasks(env.name, config.eval.tasks, split="eval", options=env.options)
    explore = explorer(Algorithm(group_size=1), policy, config.for_evaluation())
    groups = await asyncio.gather(*map(explore, tasks))
    check_played(groups)
    rewards = [one.reward for group in groups for one in group.trajectories]
    return {
        "success": sum(reward >= SUCCESS for reward in rewards) / len(tasks),
        "reward": sum(rewards) / len(tasks),
    }
