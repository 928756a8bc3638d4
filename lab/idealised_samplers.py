"""A prediction without a network: four samplers with replay, on a table of rules.

    python -m lab.idealised_samplers > lab/lines/samplers-prediction.json

The world and the batches are those of lab.sampler_study, the policy is the table of lab.idealised:
GRPO with clipped ratios takes the same steps of Adam on new and replayed groups. The prediction was
written down before the runs.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import click
import numpy as np

from lab.dry_run import DRY_RUN
from lab.idealised import Array, Ints, Table, World

WORLD = World(stations=3, tools=6, withheld=10, exceptions=0)
NEW, REPLAYED, REUSE, GROUP_SIZE = 4, 12, 8, 8
CLIP, WORTH, LIMIT, SEEDS = 0.2, 0.5, 300, 10
SAMPLERS = ("fifo", "uniform", "prioritised", "examples/surprise.py:Surprise")
FLOOR, NOISE = 0.01, 0.1  # of buffer.sampling.samplers and of examples/surprise.py


@dataclass
class Played:
    """A group: items and answers [G, n], their log-probabilities when they were given, rewards [G].
    `trained`: the last step."""

    items: Ints
    answers: Ints
    logprobs: Array
    rewards: Array
    uses: int = 0
    trained: int = 0

    @property
    def spread(self) -> float:
        return float(self.rewards.std())


def logprobs(table: Table, items: Ints, answers: Ints) -> Array:
    """Log-probabilities of answers at items, arrays of one shape; 0 where nothing is learned."""
    learned = (items >= 0) & (answers < table.world.tools)
    chances = table.chances()[items.clip(0), answers.clip(0, table.world.tools - 1)]
    return np.where(learned, np.log(chances), 0.0)


def play(table: Table) -> Played:
    """Plays one group."""
    items = np.repeat(table.rows(1), GROUP_SIZE, axis=0)
    answers = table.play(items)
    won = (answers == 0).all(-1).astype(float)
    return Played(items, answers, logprobs(table, items, answers), won)


def choose(sampler: str, groups: Sequence[Played], rng: np.random.Generator) -> list[Played]:
    """Chooses the groups that are trained again."""
    spread, count = np.array([group.spread for group in groups]), min(REPLAYED, len(groups))
    if sampler == "fifo":
        keys = np.array([float(group.trained) for group in groups])
    elif sampler == "uniform":
        keys = rng.random(len(groups))
    elif sampler == "prioritised":
        keys = rng.standard_exponential(len(groups)) / (spread + FLOOR)
    else:
        keys = -(spread + NOISE * rng.gumbel(size=len(groups)))
    return [groups[i] for i in np.argsort(keys, kind="stable")[:count]]


def learn(table: Table, groups: Sequence[Played]) -> None:
    """One step of Adam on the clipped loss of GRPO."""
    items = np.stack([group.items for group in groups])
    answers = np.stack([group.answers for group in groups])
    old = np.stack([group.logprobs for group in groups])
    rewards = np.stack([group.rewards for group in groups])
    gaps = rewards - rewards.mean(1, keepdims=True)
    advantages = (gaps / (rewards.std(1, keepdims=True) + 1e-6))[..., None]
    ratio = np.exp(logprobs(table, items, answers) - old)
    free = np.where(advantages > 0, ratio < 1 + CLIP, ratio > 1 - CLIP)
    known = np.where(answers < table.world.tools, items, -1)
    table.learn(known, answers, advantages * ratio * free / items.shape[-1])


def steps(sampler: str, seed: int) -> tuple[int, float]:
    """Returns the steps until the success is WORTH, and the share of replayed groups with
    contrast."""
    table, rng = Table(WORLD, seed), np.random.default_rng([seed, 1])
    kept, contrast = list[Played](), list[float]()
    for step in range(1, LIMIT + 1):
        again = choose(sampler, [group for group in kept if group.uses < REUSE], rng)
        new = [play(table) for _ in range(NEW + REPLAYED - len(again))]
        learn(table, [*new, *again])
        contrast += [float(group.spread > 0) for group in again]
        kept += new
        for group in (*new, *again):
            group.uses, group.trained = group.uses + 1, step
        if table.success() >= WORTH:
            return step, mean(contrast)
    return LIMIT, mean(contrast)


@click.command()
@DRY_RUN
def main(dry_run: bool) -> None:
    """Print the prediction."""
    if dry_run:
        click.echo(f"{WORLD}, base success {WORLD.base_success():.3f}: {', '.join(SAMPLERS)}")
        return
    found = {name: [steps(name, seed) for seed in range(SEEDS)] for name in SAMPLERS}
    click.echo(json.dumps({
        name: {
            "steps": round(mean(n for n, _ in runs), 1),
            "to_fifo": round(mean(n for n, _ in runs) / mean(n for n, _ in found["fifo"]), 2),
            "contrast": round(mean(share for _, share in runs), 2),
        }
        for name, runs in found.items()
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
