"""What the policies at the end of the runs can do, and the warm ones that they began from.

model of an ended run ─► ATTEMPTS at each held-out task ─► success, pass@ATTEMPTS ─┐
                      ├► one more at temperature 0 ──────► greedy ─────────────────┼► a line
                      └► reflections and retries in a changed world ─► changed ────┘

Every attempt is on disk when it ends (learner.evaluation.evaluation_folder), so the same command
continues. All policies of a world play the same tasks with the same random numbers.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from envs import registry
from lab.quality import measure
from lab.real_model.rare import Wanted, folder_of
from lab.real_model.worlds import Options, Warm, World
from lab.results.lines import append, read_lines
from launch.evaluation.play import keys_of, own_engine, play_all
from learner.evaluation.evaluation_folder import EvaluationFolder, settings_of
from learner.evaluation.metrics import report
from r3l.records import Task
from r3l.rollout.policy_interface import ScoringPolicy
from r3l.run.config import RunConfig

ATTEMPTS = 8
"""At each task. Pass@ATTEMPTS is the probability that one of so many succeeds."""
WARM = "warm"
"""What the line of a warm policy has in place of a variant."""
AT_ONCE = 64
CHANGED_TASKS = 100
SHARES = ("success", "parsed", "pivots", "guided", "restart")
"""What a line keeps of the changed world (lab.quality.Quality)."""


class Ended(NamedTuple):
    """A policy to evaluate. `line`: of the run that it ended, or that began from it. `model`: its
    folder. `variant`: of the run, or WARM."""

    world: World
    variant: str
    line: Mapping[str, Any]
    model: Path

    @property
    def options(self) -> Options:
        """Those of the run's world."""
        options: Options = json.loads(self.line["options"])
        return options

    def named(self) -> dict[str, Any]:
        """What names its line."""
        kept = {name: self.line[name] for name in ("machine", "world", "seed")}
        return {"kind": "final", **kept, "variant": self.variant}


def ended(runs: Sequence[Wanted], warm: Warm) -> Iterator[Ended]:
    """Yields the policies of those runs that have ended, each seed's warm policy before them."""
    known = [line for line in read_lines(warm.lines) if line["kind"] == "run"]
    seen = set[tuple[str, int]]()
    for run in runs:
        seed, world, variant = run
        names = {"machine": warm.machine, "world": world.name, "seed": seed, "variant": variant}
        line = next((line for line in known if line.items() >= names.items()), None)
        if line is None:
            continue
        if (world.name, seed) not in seen:
            seen.add((world.name, seed))
            yield Ended(world, WARM, line, warm.model(world, line["warm_steps"], seed))
        yield Ended(world, variant, line, folder_of(run, warm) / "model")


def make(runs: Sequence[Wanted], warm: Warm) -> None:
    """Evaluates the policies that have no line, and appends their lines. Says which models are
    gone. A dry run says what would be played."""
    for one in ended(runs, warm):
        if any(line.items() >= one.named().items() for line in read_lines(warm.lines)):
            continue
        what = f"{one.world.name} {one.variant} {one.line['seed']}"
        if warm.dry_run:
            click.echo(f"{what}: {one.model} would play held-out tasks")
        elif not (one.model / "config.json").is_file():
            click.echo(f"{what}: {one.model} is gone, so this policy has no final line", err=True)
        else:
            config = warm.configured(one.world, one.model, one.options)
            folder = warm.out / "finals" / what.replace(" ", "-")
            values = asyncio.run(evaluated(config, folder, one.world.changed))
            kept = {name: one.line[name] for name in ("policy", "warm_steps", "options")}
            append(warm.lines, one.named() | kept | values)
            click.echo(f"{what}: final")


async def evaluated(config: RunConfig, folder: Path, changed: Options | None) -> dict[str, Any]:
    """Plays what is missing in `folder` with the policy of `config`. Returns the values of a line.
    `changed`: options that make the world another one, in which reflections are measured; None:
    they are not measured."""
    folder.mkdir(parents=True, exist_ok=True)
    env, count = config.env, config.eval.tasks
    tasks = registry.tasks(env.name, env.options, "eval", count)
    async with own_engine(config, folder / "engine.log") as policy:
        sampled = await _played(config, folder / "sampled", policy, tasks, ATTEMPTS, None)
        greedy = await _played(config, folder / "greedy", policy, tasks, 1, 0.0)
        line: dict[str, Any] = {
            "tasks": len(tasks),
            "attempts": ATTEMPTS,
            "success": sampled["success"],
            "pass": sampled[f"pass@{ATTEMPTS}"],
            "greedy": greedy["success"],
        }
        if changed is not None:
            options = {**env.options, **changed}
            found = await measure(
                policy, env.name, min(count, CHANGED_TASKS), options, actor=config.actor
            )
            line["changed"] = {name: asdict(found)[name] for name in SHARES}
    return line


async def _played(
    config: RunConfig,
    place: Path,
    policy: ScoringPolicy,
    tasks: Sequence[Task],
    attempts: int,
    temperature: float | None,
) -> dict[str, float]:
    """Plays every attempt of a part that has no result. Returns the means of its metrics."""
    known = {"model": config.model, "weights": "", "split": "eval"}
    settings = settings_of(config, **known, temperature=temperature)
    make_env = partial(registry.make, config.env.name, **config.env.options)
    with closing(EvaluationFolder(place, settings)) as folder:
        await play_all(
            *(tasks, attempts, folder, policy, lambda task: make_env(), config),
            at_once=AT_ONCE,
            temperature=temperature,
        )
        played = [folder.done[key] for key in keys_of(tasks, attempts)]
    found = report(played, [attempts])
    folder.finish(found)
    return {name: round(each.mean or 0.0, 4) for name, each in found.all.estimates.items()}
