"""Four samplers with replay: which groups they train again, and what the policy learns.

    config, seed ─► buffer service ─► draw ─► step ─► priorities ─► … ─► evaluate ─► line ─► page

    python -m lab.sampler_study run --out samplers.jsonl --seed 0 --steps 40
    python -m lab.sampler_study page samplers.jsonl > docs/results/samplers.md

A line has the sampler, the seed, the groups that each step replayed, and the held-out success.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import click
from jinja2 import Environment, StrictUndefined

from lab.dry_run import DRY_RUN
from lab.results.alternate import Learner, evaluate
from lab.results.buffered import buffered
from lab.results.lines import append
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.training.measures.processor import fix_threads

SAMPLERS = ("fifo", "uniform", "prioritised", "examples/surprise.py:Surprise")
REPLAY = ("buffer.sampler.reuse=4", "buffer.sampler.replay_share=0.5", "algorithm=grpo",
          "buffer.sampler.replay_staleness=50", "learner.groups_per_step=8",
          "algorithm.kl_coef=0", "learner.lr=2e-4")  # fmt: skip


def config_of(sampler: str, seed: int, overrides: Sequence[str]) -> RunConfig:
    """The settings of one run."""
    own = (f"buffer.sampler={sampler}", f"seed={seed}")
    return configuration.load(None, [*REPLAY, *overrides, *own])


async def train(config: RunConfig, steps: int) -> dict[str, Any]:
    """Trains for `steps` steps, and says after each how far the rewards of its groups spread."""
    learner, replayed = Learner(config), list[list[str]]()
    with buffered(config) as batches:
        for done in range(1, steps + 1):
            draw, _ = await batches.batch(learner.policy, done - 1)
            learner.learn(draw)
            replayed.append(sorted(draw.row.replayed))
            batches.trained(done)
            spread = {group.group_id: float(group.rewards.std()) for group in draw.groups}
            batches.client.update_priorities(spread)
        stale = batches.client.stats().drops.get("stale", 0)
    learner.catch_up()
    return {"replayed": replayed, "stale": stale} | await evaluate(learner.policy, config)


@click.group()
def main() -> None:
    """Compare four samplers with replay."""


@main.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="lines to append to")
@click.option("--seed", "seeds", type=int, multiple=True, default=(0,))
@click.option("--steps", type=click.IntRange(1), default=40)
@DRY_RUN
@click.argument("overrides", nargs=-1)
def run(
    out: Path, seeds: tuple[int, ...], steps: int, dry_run: bool, overrides: tuple[str, ...]
) -> None:
    """Train with each sampler and each seed."""
    for seed in seeds:
        for sampler in SAMPLERS:
            config = config_of(sampler, seed, overrides)
            if dry_run:
                click.echo(f"{sampler} seed {seed}: {steps} steps of {config.env.name}")
                continue
            fix_threads(1)
            found = asyncio.run(train(config, steps))
            append(out, {"sampler": sampler, "seed": seed, "steps": steps} | found)
            click.echo(f"{sampler} seed {seed}: success {found['success']:.3f}")


@main.command()
@click.argument("lines", type=click.Path(path_type=Path))
@DRY_RUN
def page(lines: Path, dry_run: bool) -> None:
    """Print the page."""
    click.echo(f"a page of {lines}" if dry_run else render(lines), nl=dry_run)


def render(lines: Path) -> str:
    """Writes the page from the lines of all runs."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines.read_text(encoding="utf-8").splitlines():
        runs[json.loads(line)["sampler"]].append(json.loads(line))
    first = {name: {run["seed"]: run["replayed"] for run in own} for name, own in runs.items()}
    seeds = sorted(set.intersection(*(set(own) for own in first.values())))
    differ = [s for s in seeds if len({json.dumps(own[s]) for own in first.values()}) == len(first)]
    template = Path(__file__).with_name("sampler_study.md.j2").read_text(encoding="utf-8")
    made = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    rows = [(name, _row(own)) for name, own in runs.items()]
    return made.from_string(template).render(rows=rows, seeds=seeds, differ=differ)


def _row(own: Sequence[dict[str, Any]]) -> dict[str, Any]:
    success = [run["success"] for run in own]
    again = [len({g for step in run["replayed"] for g in step}) for run in own]
    error = stdev(success) / len(success) ** 0.5 if len(success) > 1 else float("nan")
    return {"runs": len(own), "success": mean(success), "error": error, "again": mean(again),
            "stale": mean(run["stale"] for run in own), "steps": own[0]["steps"]}  # fmt: skip


if __name__ == "__main__":
    main()
