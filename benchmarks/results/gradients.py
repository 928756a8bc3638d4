"""What pivotal credit does to the gradient: its variance and its bias, on stored groups.

    policy ─► groups with retries ─► each group's gradient, with and without credit ─► noise, cosine
        └───► many groups of plain attempts ─► plain policy gradient, the unbiased reference

    python -m benchmarks.results.gradients

*noise* is the trace of the covariance of a group's gradient over the squared norm of the mean: the
number of groups whose mean has a signal as strong as its noise. *cosine* is that of the mean
gradient with the reference, which itself is only known up to `ceiling`, the cosine of its halves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from torch import Tensor

from benchmarks.results.alternate import explore, full_weights, load_weights, sampler
from benchmarks.results.cells import ORIGIN
from benchmarks.results.experiments import SETTINGS
from envs.registry import task_source
from learner.step.batch import rows_of
from learner.step.trainer import Trainer
from learner.warmup.local_policy import LocalPolicy
from r3l import config as configuration
from r3l.config import RunConfig
from r3l.records import Group

OUT = Path(__file__).parents[2] / "docs" / "results" / "e4.jsonl"
ESTIMATORS = {
    "credit": ("algorithm=r3l",),
    "no_credit": ("algorithm=r3l", "algorithm.credit=false"),
    "credit_plain": ("algorithm=r3l", "algorithm.amplify=false"),
    "no_credit_plain": ("algorithm=r3l", "algorithm.credit=false", "algorithm.amplify=false"),
}
REFERENCE = ("algorithm=r3l", "algorithm.reflect=false", "algorithm.amplify=false")
ALONE = ("algorithm.sft_weight=0",)
"""The auxiliary loss is left out: it does not depend on credit."""


@dataclass
class Moments:
    """Mean and noise of vectors that come one by one."""

    count: int = 0
    total: Tensor | None = None
    squares: float = 0.0

    def add(self, vector: Tensor) -> None:
        """Count one more vector."""
        self.count += 1
        self.total = vector.clone() if self.total is None else self.total.add_(vector)
        self.squares += float(vector.square().sum())

    @property
    def mean(self) -> Tensor:
        """The mean vector. Raises ValueError before the first."""
        if self.total is None:
            raise ValueError("no vector was added")
        return self.total / self.count

    @property
    def noise(self) -> float:
        """Trace of the covariance over the squared norm of the mean."""
        signal = float(self.mean.square().sum())
        spread = (self.squares - self.count * signal) / (self.count - 1)
        return spread / max(signal - spread / self.count, 1e-30)


@click.command()
@click.option("--groups", type=click.IntRange(min=4), default=128, show_default=True)
@click.option("--reference", type=click.IntRange(min=4), default=512, show_default=True)
@click.option("--steps", multiple=True, type=int, default=(0, 10), show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True)
def main(groups: int, reference: int, steps: tuple[int, ...], seed: int, out: Path) -> None:
    """Append a line to OUT for the policy after each of STEPS optimizer steps of R³L."""
    torch.set_num_threads(1)
    config = _config(ESTIMATORS["credit"], seed)
    trainer = Trainer(Path(config.model), config.learner, config.algorithm.build(), seed=seed)
    policy = sampler(Path(config.model), seed)
    for step in range(max(steps) + 1):
        if step in steps:
            found = compare(policy, groups, reference, seed)
            with out.open("a", encoding="utf-8") as file:
                print(json.dumps({"step": step, "seed": seed} | found), file=file)
        trainer.step(rows_of(_groups(policy, config, 16, step * 16), config.algorithm.build()))
        load_weights(policy, full_weights(trainer))


def compare(policy: LocalPolicy, count: int, reference: int, seed: int) -> dict[str, object]:
    """Noise and cosine of each estimator on the same `count` groups of the policy."""
    far = 1_000_000  # tasks that no run trains on
    plain = _config(REFERENCE, seed)
    halves = [
        _moments(policy, _groups(policy, plain, reference // 2, far + i * reference), plain)
        for i in (1, 2)
    ]
    target = halves[0].mean + halves[1].mean
    found: dict[str, object] = {
        "groups": count,
        "reference": reference,
        "ceiling": _cosine(halves[0].mean, halves[1].mean),
    }
    stored = _groups(policy, _config(ESTIMATORS["credit"], seed), count, far)
    for name, overrides in ESTIMATORS.items():
        moments = _moments(policy, stored, _config((*overrides, *ALONE), seed))
        cosine = _cosine(moments.mean, target)
        found[name] = {"noise": round(moments.noise, 2), "cosine": cosine}
    return found


def gradients(policy: LocalPolicy, groups: Sequence[Group], config: RunConfig) -> Iterator[Tensor]:
    """The gradient of each group's loss at the policy's weights, as one step on it has it."""
    plain = config.learner.model_copy(update={"dtype": "float32", "zero_stage": 0})
    algorithm = config.algorithm.build()
    trainer = Trainer(ORIGIN, plain, algorithm)
    weights = dict(policy.model.named_parameters())
    for name, value in trainer.module.lm.named_parameters():
        value.data.copy_(weights[name])
    for group in groups:
        yield trainer.gradient(rows_of([group], algorithm))


def _moments(policy: LocalPolicy, groups: Sequence[Group], config: RunConfig) -> Moments:
    moments = Moments()
    for vector in gradients(policy, groups, config):
        moments.add(vector)
    return moments


def _cosine(one: Tensor, other: Tensor) -> float:
    return round(float(torch.nn.functional.cosine_similarity(one, other, dim=0)), 4)


def _config(overrides: Sequence[str], seed: int) -> RunConfig:
    return configuration.load(SETTINGS, [f"model={ORIGIN}", *overrides, f"seed={seed}"])


def _groups(policy: LocalPolicy, config: RunConfig, count: int, first: int) -> list[Group]:
    tasks = task_source(config.env.name).tasks("train", count, config.seed, first)
    plan = config.algorithm.build().plan()
    return [
        group
        for at in range(0, count, 32)
        for group in asyncio.run(explore(tasks[at : at + 32], policy, config, plan))
    ]


if __name__ == "__main__":
    main()
