"""Runs of SmolLM2 where it rarely succeeds, one after the other, and their lines."""

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click

from lab.dry_run import show_launch
from lab.real_model.training import Stopped, arguments, train
from lab.real_model.worlds import WORLDS, Warm, World, overrides
from lab.results.lines import LINES, append, read_lines

FILE = LINES / "rare.jsonl"
SEEDS = (1, 2, 3)
"""Each has a warm policy of its own."""
MINUTES = 100.0


class Wanted(NamedTuple):
    """A run that is wanted."""

    seed: int
    world: World
    variant: str


def wanted(
    worlds: Sequence[str] = (), variants: Sequence[str] = (), seeds: Sequence[int] = ()
) -> Iterator[Wanted]:
    """Yields the runs, the first seed of everything before the second of anything. Controls are
    wanted only if `variants` names them."""
    for seed, name in product(seeds or SEEDS, worlds or WORLDS):
        world = WORLDS[name]
        named = [name for name in (*world.variants, *world.controls) if name in variants]
        for variant in named if variants else world.variants:
            yield Wanted(seed, world, variant)


def folder_of(run: Wanted, warm: Warm) -> Path:
    """Returns the folder of a run."""
    return warm.out / "runs" / f"{run.world.name}-{run.variant}-{run.seed}"


def make(
    runs: Sequence[Wanted], warm: Warm, learner: str, more: Sequence[str], minutes: float | None
) -> bool:
    """Makes or continues the runs that have no line, and appends their lines. A run that is stopped
    after `minutes` is left for the next call. Returns whether all have ended."""
    ended, policies = True, dict[tuple[str, int], Any]()
    for seed, world, variant in runs:
        named = {"kind": "run", "machine": warm.machine, "world": world.name,
                 "variant": variant, "seed": seed}  # fmt: skip
        if any(line.items() >= named.items() for line in read_lines(warm.lines)):
            continue
        if (world.name, seed) not in policies:
            policies[world.name, seed] = warm.policy(world, seed)
        model, steps, options = policies[world.name, seed]
        words = ["--learner", learner, *overrides(options), *more]
        folder = folder_of(Wanted(seed, world, variant), warm)
        run = (model, variant, seed, folder, words, world.settings)
        if warm.dry_run:
            show_launch(arguments(*run))
            continue
        try:
            values = train(*run, minutes=minutes)
        except Stopped as stopped:
            click.echo(str(stopped), err=True)
            ended = False
            continue
        about: dict[str, Any] = {
            "policy": seed,
            "warm_steps": steps,
            "options": json.dumps(options),
        }
        append(warm.lines, named | about | values)
        click.echo(f"{world.name} {variant} {seed}: done")
    return ended


def warm(out: Path, lines: Path, machine: str, *, dry_run: bool, more: Sequence[str]) -> Warm:
    """Makes what warms policies. Settings of `more` that are the engine's or an evaluation's hold
    for their probes and for the evaluation of ended policies, too."""
    own = [setting for setting in more if setting.startswith(("actor.", "eval."))]
    return Warm(out, lines, machine, dry_run, own)
