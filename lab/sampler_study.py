"""Four samplers with replay: the steps that a policy needs until half of its attempts succeed.

    settings ─► buffer service ─► draw ─► step ─► priorities ─► … ─► half succeed ─► line

    python -m lab.sampler_study --out lab/lines/samplers.jsonl --seed 0 --seed 1 --seed 2

lab.sampler_page writes the page.
"""

import asyncio
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import click

from lab.dry_run import DRY_RUN
from lab.results.alternate import Learner
from lab.results.buffered import buffered
from lab.results.lines import append
from lab.sampler_page import reached, read
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.training.measures.processor import fix_threads

SAMPLERS = ("fifo", "uniform", "prioritised", "examples/surprise.py:Surprise")
CELL = ("env=workshop", "env.options.stations=3", "env.options.exceptions=0", "algorithm=grpo",
        "algorithm.group_size=8", "algorithm.kl_coef=0", "learner.groups_per_step=16",
        "learner.lr=2e-4", "learner.warmup_steps=2", "buffer.max_staleness=0",
        "buffer.sampler.reuse=8", "buffer.sampler.replay_share=0.75",
        "buffer.sampler.replay_staleness=1000", "buffer.sampler.beta=0")  # fmt: skip
LIMIT = 120  # steps at which a run ends


async def train(config: RunConfig) -> list[dict[str, Any]]:
    """Trains until half of the new attempts of 5 steps succeed. Returns what each step saw."""
    loop, steps = Learner(config), list[dict[str, Any]]()
    with buffered(config) as batches:
        while len(steps) < LIMIT and not reached(steps):
            draw, _ = await batches.batch(loop.policy, len(steps))
            loop.learn(draw)
            batches.trained(len(steps) + 1)
            spread = {group.group_id: round(float(group.rewards.std()), 3) for group in draw.groups}
            batches.client.update_priorities(spread)
            again = [group for group in draw.groups if group.group_id in draw.replayed]
            new = [group for group in draw.groups if group.group_id not in draw.replayed]
            steps.append({"success": mean(float(group.rewards.mean()) for group in new),
                          "replayed": [group.group_id for group in again],
                          "age": [len(steps) - group.oldest_version for group in again],
                          "spread": [spread[group.group_id] for group in again]})  # fmt: skip
    return steps


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="lines to append to")
@click.option("--seed", "seeds", type=int, multiple=True, default=(0,))
@DRY_RUN
@click.argument("overrides", nargs=-1)
def main(out: Path, seeds: tuple[int, ...], dry_run: bool, overrides: tuple[str, ...]) -> None:
    """Train with each sampler and each seed. Runs that have a line are not made again."""
    there = {(run.sampler, run.seed) for run in read(out)}
    for seed, name in product(seeds, SAMPLERS):
        own = (*CELL, *overrides, f"buffer.sampler={name}", f"seed={seed}")
        config = configuration.load(None, own)
        click.echo(f"{name}, seed {seed}: {'there' if (name, seed) in there else 'runs'}")
        if not dry_run and (name, seed) not in there:
            fix_threads(1)
            append(out, {"sampler": name, "seed": seed, "steps": asyncio.run(train(config))})


if __name__ == "__main__":
    main()
