"""Measures how a warmed-up policy plays held-out tasks, reflects and follows guidance."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from envs import registry
from envs.base import Demonstrating
from envs.demonstrations import demonstrating
from r3l.algorithms.published.grpo import GRPOConfig
from r3l.algorithms.r3l import R3LConfig
from r3l.config import RunConfig
from r3l.records import ReflectionRecord, SlotResult, Task, Trajectory
from r3l.rollout.group import explore_group
from r3l.rollout.interfaces import Policy
from r3l.settings.actor import ActorConfig
from r3l.settings.environment import EnvConfig


@dataclass(frozen=True)
class Quality:
    """Results on held-out tasks. All are shares of 1, except `reward` and `reflection_cost`.

    success          success of first attempts
    reward           mean reward of first attempts
    parsed           reflections that could be parsed
    pivots           pivots equal to the teacher's
    guided           success of guided retries from the pivot, after failed attempts
    restart          success of plain restarts, after failed attempts
    told             success of first attempts if the task states every rule
    reflection_cost  ρ: mean sampled tokens of a reflection over those of an attempt
    """

    tasks: int
    success: float
    reward: float
    parsed: float
    pivots: float
    guided: float
    restart: float
    told: float
    reflection_cost: float


def measure(
    policy: Policy, env: str, count: int, options: Mapping[str, Any], *, seed: int = 0
) -> Quality:
    """Play at most `count` held-out tasks at temperature 1: attempt, reflect, retry. Then restart
    the failed tasks, and play each task once more with every rule stated."""
    tasks = registry.tasks(env, options, "eval", count, seed)
    count = len(tasks)
    groups = asyncio.run(_explore(policy, env, options, tasks, reflect=True))
    firsts = [_slot(results, "base").trajectory for results in groups]
    seconds = [_slot(results, "distilled") for results in groups]
    failed = [i for i, first in enumerate(firsts) if first is None or first.reward < 1.0]
    again = asyncio.run(_explore(policy, env, options, [tasks[i] for i in failed], reflect=False))
    informed = {**options, **getattr(demonstrating(env, **options), "told", dict)()}
    told = asyncio.run(_explore(policy, env, informed, tasks, reflect=False))
    teacher = demonstrating(env, **options)
    thoughts = [slot.reflection for slot in seconds]
    right = [
        first is not None and thought is not None and thought.pivot == _pivot(teacher, task, first)
        for task, first, thought in zip(tasks, firsts, thoughts, strict=True)
    ]
    return Quality(
        tasks=count,
        success=1.0 - len(failed) / count,
        reward=fmean(0.0 if first is None else first.reward for first in firsts),
        parsed=_share([thought is not None and not thought.cause for thought in thoughts]),
        pivots=_share(right),
        guided=_share([_succeeded(seconds[i]) for i in failed if seconds[i].trajectory]),
        restart=_share([_succeeded(_slot(results, "base")) for results in again]),
        told=_share([_succeeded(_slot(results, "base")) for results in told]),
        reflection_cost=_cost(firsts, thoughts),
    )


async def _explore(
    policy: Policy, env: str, options: Mapping[str, Any], tasks: Sequence[Task], *, reflect: bool
) -> list[list[SlotResult]]:
    config = RunConfig(
        env=EnvConfig(name=env, options=dict(options)),
        algorithm=R3LConfig(group_size=2) if reflect else GRPOConfig(group_size=1, std="none"),
        actor=ActorConfig(max_reflection_tokens=256),
    )
    make = partial(registry.make, env, **options)
    return list(
        await asyncio.gather(*(explore_group(task, policy, make, config) for task in tasks))
    )


def _pivot(teacher: Demonstrating, task: Task, attempt: Trajectory) -> int:
    """Return the pivot that the teacher would choose for an attempt, or -1 if it chooses none."""
    teacher.reset(seed=task.seed, options=task.options)
    for action in attempt.actions:
        teacher.step(action)
    pivot = teacher.reflection()["retry_from_step"]
    return -1 if pivot is None else int(pivot)


def _slot(results: Sequence[SlotResult], role: str) -> SlotResult:
    return next(result for result in results if result.role == role)


def _succeeded(result: SlotResult) -> bool:
    return result.trajectory is not None and result.trajectory.reward >= 1.0


def _cost(
    attempts: Sequence[Trajectory | None], thoughts: Sequence[ReflectionRecord | None]
) -> float:
    sampled = [int(attempt.response_mask.sum()) for attempt in attempts if attempt is not None]
    written = [thought.tokens for thought in thoughts if thought is not None]
    return fmean(written) / fmean(sampled) if written and sampled else 0.0


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 0.0
