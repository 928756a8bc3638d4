"""The command `r3l-buffer rehearse`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from buffer.sampling import samplers, task_samplers
from buffer.storage.store import Store
from buffer.storage.store_path import store_path
from buffer.tools import recorded
from buffer.tools.recorded import Pace, Recorded
from buffer.tools.rehearsal import Outcome, Rehearsal
from r3l import config as configuration
from r3l.config import RunConfig
from r3l.errors import UserError

PAYS = 0.1
"""More actors pay as long as a doubling would make steps shorter by this share."""
PATH = click.Path(path_type=Path)


@click.command()
@click.argument("folder", metavar="STORE", type=store_path)
@click.option("--actors", help="how many, or several numbers to compare: 4,8,16")
@click.option("--groups-per-step", type=click.IntRange(1), help="learner.groups_per_step")
@click.option("--max-staleness", type=click.IntRange(0), help="buffer.max_staleness")
@click.option("--sampler", help="buffer.sampler")
@click.option("--steps", type=click.IntRange(5), help="optimizer steps to play; unset: as recorded")
@click.option("--config", "config_path", type=PATH, help="unset: config.yaml beside the store")
@click.option("--json", "as_json", is_flag=True, help="print the numbers as JSON")
@click.argument("overrides", nargs=-1)
def rehearse(
    folder: Path,
    actors: str | None,
    groups_per_step: int | None,
    max_staleness: int | None,
    sampler: str | None,
    steps: int | None,
    config_path: Path | None,
    as_json: bool,
    overrides: tuple[str, ...],
) -> None:
    """Predict the pace of a run with other settings from a run's recorded durations.

    Plays them in simulated time through the buffer's own admission and sampling. OVERRIDES are
    further settings, section.key=value. Every actor is as fast as a recorded one: no two of them,
    nor the learner, share a processor or GPU.
    """
    more = {
        "learner.groups_per_step": groups_per_step,
        "buffer.max_staleness": max_staleness,
        "buffer.sampler": sampler,
    }
    given = [f"{key}={value}" for key, value in more.items() if value is not None]
    own = folder.parent / "config.yaml"
    path = config_path or (own if own.is_file() else None)
    config = configuration.load(path, [*given, *overrides])
    samplers.check(config.buffer.sampler)
    task_samplers.make(config.buffer.tasks)
    store = Store(folder, read_only=True)
    try:
        found = recorded.read(store)
    finally:
        store.close()
    outcomes = outcomes_of(found, config, _numbers(actors, found), steps)
    if as_json:
        click.echo(json.dumps([_plain(outcome) for outcome in outcomes]))
    else:
        click.echo("\n".join(table(found, outcomes)))


def outcomes_of(
    found: Recorded, config: RunConfig, actors: Sequence[int], steps: int | None
) -> list[Outcome]:
    """A rehearsal for each number of actors."""
    count = max(steps or min(len(found.step_s), 200), 5)
    return [Rehearsal(found, config, number, count).run() for number in actors]


def table(found: Recorded, outcomes: Sequence[Outcome]) -> list[str]:
    """Lines for people: what was recorded, what is predicted, and the number that pays."""
    lines = [
        f"recorded: {len(found.groups)} groups, {len(found.step_s)} steps, {found.actors} actors "
        f"with {found.places} groups at a time",
        "             step s  learner idle  actors idle  staleness",
        f"recorded   {_row(found.pace)}",
    ]
    for one in outcomes:
        lines.append(f"{one.actors:>4} actors{_row(one.pace):>45}")
        lines += [
            f"              {share:.1%} of groups of {kind} tasks expire: {cause}"
            for (cause, kind), share in one.expired.items()
        ]
    if len(outcomes) > 1:
        lines.append(pays(outcomes))
    return lines


def pays(outcomes: Sequence[Outcome]) -> str:
    """Which number of actors pays: beyond it a doubling makes steps less than PAYS shorter."""
    ranked = sorted(outcomes, key=lambda one: one.actors)
    best = ranked[0]
    for more in ranked[1:]:
        doublings = more.actors / best.actors - 1
        if 1 - more.pace.step_s / best.pace.step_s < PAYS * min(doublings, 1.0):
            break
        best = more
    return (
        f"{best.actors} actors pay: {best.pace.step_s:.3g} s a step, the learner idle for "
        f"{best.pace.learner_idle:.0%}, actors for {best.pace.actor_idle:.0%}"
    )


def _row(pace: Pace) -> str:
    return (
        f"{pace.step_s:>8.2f}{pace.learner_idle:>13.0%}{pace.actor_idle:>13.0%}"
        f"{pace.staleness:>11.2f}"
    )


def _numbers(actors: str | None, found: Recorded) -> list[int]:
    if actors is None:
        return [found.actors]
    try:
        numbers = sorted({int(part) for part in actors.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers[-1] > 4096:
        raise UserError(f"--actors {actors}: must be numbers from 1 to 4096, such as 4,8,16")
    return numbers


def _plain(outcome: Outcome) -> dict[str, object]:
    expired = {f"{cause}/{kind}": share for (cause, kind), share in outcome.expired.items()}
    return {"actors": outcome.actors, **asdict(outcome.pace), "expired": expired}
