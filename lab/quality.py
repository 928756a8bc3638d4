"""Measures how a policy of `r3l-learner warmup` acts, reflects and follows guidance.

python -m lab.quality MODEL --tasks 100
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from envs import registry
from envs.base import Demonstrating
from envs.demonstrations import demonstrating
from lab.dry_run import DRY_RUN
from lab.warmed import Warmed, warmed_for
from launch.checks.of_model import chat_format, model_folder
from launch.evaluation.play import own_engine
from learner.warmup.recipe import RECORD
from r3l.algorithms.algorithm import AlgorithmConfig
from r3l.algorithms.published.grpo import GRPOConfig
from r3l.algorithms.r3l import R3LConfig
from r3l.records import ReflectionRecord, SlotResult, Task, Trajectory
from r3l.rollout.group import explore_group
from r3l.rollout.policy_interface import Policy
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.run.process.command_line import OneLine, echo
from r3l.run.settings.actor import ActorConfig
from r3l.run.settings.environment import EnvConfig


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


LEGEND = """\
  success, reward: of first attempts; parsed: usable reflections; pivots: as the teacher chooses
  guided, restart: success after a failure, by a retry with advice or a new attempt without
  told: success if the task says every rule; reflection_cost: its tokens over those of an attempt"""
ACTOR = ActorConfig(max_reflection_tokens=256)


@click.command("lab.quality", cls=OneLine)
@click.argument("model", type=Path)
@click.option(
    "--tasks", type=click.IntRange(1), default=100, show_default=True, help="of each environment"
)
@click.option(
    "--outcome-first", is_flag=True, help="reflections begin with the outcome; records nothing"
)
@DRY_RUN
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def quality(
    model: Path, tasks: int, outcome_first: bool, dry_run: bool, overrides: tuple[str, ...]
) -> None:
    """Play held-out tasks with a policy of `r3l-learner warmup`, and record its quality in MODEL.

    KEY=VALUE are settings, such as actor.earlier_reasoning=keep.
    """
    worlds = warmed_for(model)
    reflections = f"actor.max_reflection_tokens={ACTOR.max_reflection_tokens}"
    config = configuration.load(None, [f"model={model}", reflections, *overrides])
    chat_format(config, model_folder(config.model))
    if dry_run:
        for world in worlds:
            echo(f"{model} would play {tasks} held-out tasks of {world.env} {world.options}")
        return
    log = model / "engine.log"
    echo(f"starting an engine for {model} (log: {log})", err=True)
    measured = asyncio.run(_measure_all(worlds, config, tasks, log, outcome_first))
    if not outcome_first:
        keep_quality(model, {env: asdict(its) for env, its in measured.items()})
    for env, its in measured.items():
        shares = " ".join(f"{k} {v:.2f}" for k, v in asdict(its).items() if k != "tasks")
        echo(f"{env} ({its.tasks} tasks): {shares}")
    echo(LEGEND)


def keep_quality(folder: Path, quality: Mapping[str, Mapping[str, float]]) -> None:
    """Add what was measured, by environment, to the record of a warmed-up folder."""
    path = folder / RECORD
    made = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(made | {"quality": quality}, indent=2) + "\n", encoding="utf-8")


async def _measure_all(
    worlds: Sequence[Warmed], config: RunConfig, count: int, log: Path, outcome_first: bool
) -> dict[str, Quality]:
    async with own_engine(config, log) as policy:
        return {
            world.env: await measure(
                policy,
                world.env,
                count,
                world.options,
                actor=config.actor,
                outcome_first=outcome_first,
            )
            for world in worlds
        }


async def measure(
    policy: Policy,
    env: str,
    count: int,
    options: Mapping[str, Any],
    *,
    actor: ActorConfig = ACTOR,
    outcome_first: bool = False,
) -> Quality:
    """Play at most `count` held-out tasks at temperature 1: attempt, reflect, retry. Then restart
    the failed tasks, and play each task once more with every rule stated."""
    tasks = registry.tasks(env, options, "eval", count, seed=0)
    count = len(tasks)
    plain = GRPOConfig(group_size=1, std="none")
    explore = partial(_explore, policy, actor, env)
    reflecting = R3LConfig(group_size=2, outcome_first=outcome_first)
    groups = await explore(options, tasks, reflecting)
    firsts = [_slot(results, "base").trajectory for results in groups]
    seconds = [_slot(results, "distilled") for results in groups]
    failed = [i for i, first in enumerate(firsts) if first is None or first.reward < 1.0]
    again = await explore(options, [tasks[i] for i in failed], plain)
    informed = {**options, **getattr(demonstrating(env, **options), "told", dict)()}
    told = await explore(informed, tasks, plain)
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
    policy: Policy,
    actor: ActorConfig,
    env: str,
    options: Mapping[str, Any],
    tasks: Sequence[Task],
    algorithm: AlgorithmConfig,
) -> list[list[SlotResult]]:
    config = RunConfig(
        env=EnvConfig(name=env, options=dict(options)),
        algorithm=algorithm,
        actor=actor,
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


if __name__ == "__main__":
    quality()
