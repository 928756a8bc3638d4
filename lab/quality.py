"""Measures how a policy of `r3l-learner warmup` acts, reflects and follows guidance.

python -m lab.quality MODEL --tasks 100
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import click

from envs import exploring
from envs.base import Demonstrating
from envs.demonstrations import demonstrating
from lab.dry_run import DRY_RUN
from lab.warmed import Warmed, warmed_for
from launch.checks.of_model import chat_format, model_folder
from launch.evaluation.play import own_engine
from learner.warmup.recipe import RECORD
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.r3l import R3L
from r3l.records import SUCCESS, Group, ReflectionRecord, Task, Trajectory
from r3l.rollout.policy_interface import Policy
from r3l.rollout.prompts import GuidanceText
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.run.process.command_line import OneLine, echo
from r3l.run.settings.actor import ActorConfig


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
ACTOR = ActorConfig(max_reflection_tokens=256, reflect_temperature=1)
_SINGLE = Algorithm(group_size=1)
AT_ONCE = 48
"""Groups that are played at once. If there are many more, the engine's cache holds no attempt until
its next step."""


@click.command("lab.quality", cls=OneLine)
@click.argument("model", type=Path)
@click.option(
    "--tasks", type=click.IntRange(1), default=100, show_default=True, help="of each environment"
)
@click.option(
    "--outcome-first", is_flag=True, help="reflections begin with the outcome; records nothing"
)
@click.option(
    "--guidance-text",
    type=click.Choice(get_args(GuidanceText)),
    help="what retries are shown; unset: what the policy was taught; another records nothing",
)
@DRY_RUN
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def quality(
    model: Path,
    tasks: int,
    outcome_first: bool,
    guidance_text: GuidanceText | None,
    dry_run: bool,
    overrides: tuple[str, ...],
) -> None:
    """Play held-out tasks with a policy of `r3l-learner warmup`, and record its quality in MODEL.

    KEY=VALUE are settings, such as actor.earlier_reasoning=keep.
    """
    worlds = warmed_for(model)
    reflections = [f"actor.max_reflection_tokens={ACTOR.max_reflection_tokens}"]
    reflections += [f"actor.reflect_temperature={ACTOR.reflect_temperature}"]
    config = configuration.load(None, [f"model={model}", *reflections, *overrides])
    chat_format(config, model_folder(config.model))
    if dry_run:
        for world in worlds:
            echo(f"{model} would play {tasks} held-out tasks of {world.env} {world.options}")
        return
    log = model / "engine.log"
    echo(f"starting an engine for {model} (log: {log})", err=True)
    if guidance_text:
        worlds = [world._replace(guidance_text=guidance_text) for world in worlds]
    measured = asyncio.run(_measure_all(worlds, config, tasks, log, outcome_first))
    if not outcome_first and worlds == warmed_for(model):
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
                guidance_text=world.guidance_text,
            )
            for world in worlds
        }


async def first_success(
    policy: Policy, env: str, count: int, options: Mapping[str, Any], actor: ActorConfig = ACTOR
) -> float:
    """Return the success of one plain attempt at each of at most `count` held-out tasks."""
    tasks = exploring.tasks(env, count, split="eval", options=options)
    groups = await _explore(_SINGLE, tasks, policy, env, options, actor)
    return _share([_succeeded(_attempt(group, 0)) for group in groups])


async def measure(
    policy: Policy,
    env: str,
    count: int,
    options: Mapping[str, Any],
    *,
    actor: ActorConfig = ACTOR,
    outcome_first: bool = False,
    guidance_text: GuidanceText = "advice",
) -> Quality:
    """Play at most `count` held-out tasks at temperature 1: attempt, reflect, retry. Then restart
    the failed tasks, and play each task once more with every rule stated."""
    tasks = exploring.tasks(env, count, split="eval", options=options)
    count = len(tasks)

    async def explore(
        algorithm: Algorithm, tasks: Sequence[Task], options: Mapping[str, Any] = options
    ) -> list[Group]:
        return await _explore(algorithm, tasks, policy, env, options, actor)

    retried = R3L(group_size=2, outcome_first=outcome_first, guidance_text=guidance_text)
    groups = await explore(retried, tasks)
    firsts = [_attempt(group, 0) for group in groups]
    retries = [_attempt(group, 1) for group in groups]
    failed = [i for i, first in enumerate(firsts) if not _succeeded(first)]
    again = await explore(_SINGLE, [tasks[i] for i in failed])
    teacher = demonstrating(env, **options)
    told = await explore(_SINGLE, tasks, {**options, **getattr(teacher, "told", dict)()})
    thoughts = [next(iter(group.reflections), None) for group in groups]
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
        guided=_share([_succeeded(retries[i]) for i in failed if retries[i] is not None]),
        restart=_share([_succeeded(_attempt(group, 0)) for group in again]),
        told=_share([_succeeded(_attempt(group, 0)) for group in told]),
        reflection_cost=_cost(firsts, thoughts),
    )


async def _explore(
    algorithm: Algorithm,
    tasks: Sequence[Task],
    policy: Policy,
    env: str,
    options: Mapping[str, Any],
    actor: ActorConfig,
) -> list[Group]:
    """Plays a group of each task, at most AT_ONCE of them at once."""
    free, decoding = asyncio.Semaphore(AT_ONCE), actor.decoding()

    async def group(task: Task) -> Group:
        async with free:
            return await exploring.explore(
                algorithm, task, policy, env, options=options, decoding=decoding
            )

    return await asyncio.gather(*map(group, tasks))


def _pivot(teacher: Demonstrating, task: Task, attempt: Trajectory) -> int:
    """Return the pivot that the teacher would choose for an attempt, or -1 if it chooses none."""
    teacher.reset(seed=task.seed, options=task.options)
    for action in attempt.actions:
        teacher.step(action)
    pivot = teacher.reflection()["retry_from_step"]
    return -1 if pivot is None else int(pivot)


def _attempt(group: Group, slot: int) -> Trajectory | None:
    return next((attempt for attempt in group.trajectories if attempt.slot == slot), None)


def _succeeded(attempt: Trajectory | None) -> bool:
    return attempt is not None and attempt.reward >= SUCCESS


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
