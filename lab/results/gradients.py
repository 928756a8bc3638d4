"""What pivotal credit does to the gradient: its variance and its bias, on stored groups.

    policy ─► groups with retries ─► each group's gradient, with and without credit ─► noise, cosine
        └───► many groups of plain attempts ─► plain policy gradient, the unbiased reference

    python -m lab.results.gradients [--cell long-row]

*noise* is the trace of the covariance of a group's gradient over the squared norm of the mean: the
number of groups whose mean has a signal as strong as its noise. *cosine* is that of the mean
gradient with the reference, whose two halves have the cosine `halves` with each other.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from torch import Tensor

from envs.registry import task_source
from lab.dry_run import DRY_RUN
from lab.results.alternate import Learner, explorer, trainer_of
from lab.results.cells import CELLS, EASIEST, Cell
from lab.results.experiments import (
    ALONE,
    BASE,
    BATCH,
    ESTIMATORS,
    REFERENCE,
    gradients_setup_of,
    load,
)
from lab.results.lines import LINES, POLICIES, append, read_lines
from r3l.algorithms.batch import Batch
from r3l.algorithms.rows import Row
from r3l.errors import UserError
from r3l.records import Group, Task
from r3l.run.config import RunConfig
from r3l.training.local_policy import LocalPolicy
from r3l.training.measures.processor import fix_threads
from r3l.training.micro_batch import collate, micro_batches
from r3l.training.step_loss import Loss, step_loss
from r3l.training.trainer import Trainer

FILE = "e4.jsonl"


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


@dataclass(frozen=True)
class Start:
    """A world and the policy that training starts from."""

    cell: Cell
    model: Path

    def config(self, overrides: Sequence[str], seed: int) -> RunConfig:
        """The settings of a run from here."""
        world = (*BASE, *self.cell.overrides()) if self.cell != EASIEST else ()
        return load(self.model, [*world, *overrides, f"seed={seed}"])


@click.command()
@click.option("--groups", type=click.IntRange(min=4), default=128, show_default=True)
@click.option("--reference", type=click.IntRange(min=4), default=512, show_default=True)
@click.option("--steps", multiple=True, type=int, default=(0, 8), show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--cell", "name", type=click.Choice([*CELLS]), default=EASIEST.name)
@click.option("--lines", type=click.Path(path_type=Path), default=LINES, show_default=True)
@click.option("--policies", type=click.Path(path_type=Path), default=POLICIES, show_default=True)
@DRY_RUN
def main(
    groups: int,
    reference: int,
    steps: tuple[int, ...],
    seeds: int,
    name: str,
    lines: Path,
    policies: Path,
    dry_run: bool,
) -> None:
    """Measure the policy after each of STEPS optimizer steps of R³L, a line each in e4.jsonl.
    Lines that are there are not made again; a warm policy that is missing is made first."""
    fix_threads(1)
    cell = CELLS[name]
    named = {} if cell == EASIEST else {"cell": name}
    try:
        stored = read_lines(lines / FILE, gradients_setup_of)
        mine = [line for line in stored if line.get("cell") == named.get("cell")]
        there = {(line["step"], line["seed"]) for line in mine}
        missing = {s: [step for step in steps if (step, s) not in there] for s in range(seeds)}
        if dry_run:
            _show(cell, missing, policies)
            return
        cell.warm(policies)
        start = Start(cell, cell.policy(policies))
    except UserError as error:
        click.echo(f"lab.results.gradients: {error}", err=True)
        sys.exit(2)
    for seed in range(seeds):
        for step, policy in _trained(start, missing[seed], seed):
            found = compare(start, policy, groups, reference, seed)
            line = named | {"step": step, "seed": seed} | found
            append(lines / FILE, line | {"setup": gradients_setup_of(line)})
            click.echo(f"step {step}, seed {seed}: done")


def _show(cell: Cell, missing: Mapping[int, Sequence[int]], policies: Path) -> None:
    """Build the configuration of every estimator, and print the policies that are not measured."""
    start = Start(cell, cell.shown(policies))
    for settings in (REFERENCE, *(overrides for _, overrides in ESTIMATORS.values())):
        start.config(settings, 0)
    for seed, steps in missing.items():
        left = " and ".join(f"after step {step}" for step in steps) or "none"
        click.echo(f"{cell.name}, seed {seed}: policies to measure: {left}")


def _trained(start: Start, steps: Sequence[int], seed: int) -> Iterator[tuple[int, LocalPolicy]]:
    """The policy after each of `steps` optimizer steps."""
    config = start.config(ESTIMATORS["credit"][1], seed)
    learner = Learner(config)
    for step in range(max(steps, default=-1) + 1):
        if step in steps:
            yield step, learner.policy
        learner.learn(Batch(_groups(learner.policy, config, BATCH, step * BATCH)))


def compare(
    start: Start, policy: LocalPolicy, count: int, reference: int, seed: int
) -> dict[str, object]:
    """Noise and cosine of each estimator on the same `count` groups of the policy."""
    far = 1_000_000  # tasks that no run trains on
    plain = start.config(REFERENCE, seed)
    halves = [
        _moments(policy, _groups(policy, plain, reference // 2, far + i * reference), plain)
        for i in (1, 2)
    ]
    target = halves[0].mean + halves[1].mean
    found: dict[str, object] = {
        "groups": count,
        "reference": reference,
        "halves": _cosine(halves[0].mean, halves[1].mean),
    }
    stored = _groups(policy, start.config(ESTIMATORS["credit"][1], seed), count, far)
    for name, (_, overrides) in ESTIMATORS.items():
        moments = _moments(policy, stored, start.config((*overrides, *ALONE), seed))
        cosine = _cosine(moments.mean, target)
        found[name] = {"noise": round(moments.noise, 2), "cosine": cosine}
    return found


def gradients(policy: LocalPolicy, groups: Sequence[Group], config: RunConfig) -> Iterator[Tensor]:
    """Yields the gradient of each group's loss at the policy's weights, as one step on it has
    it."""
    trainer, algorithm = trainer_of(config), config.algorithm
    trainer.load(dict(policy.model.named_parameters()))
    for group in groups:
        batch = Batch([group])
        batch = trainer.answer(batch, algorithm.queries(batch))
        yield _gradient(trainer, algorithm.rows(batch), algorithm.loss)


def _gradient(trainer: Trainer, rows: Sequence[Row], loss: Loss) -> Tensor:
    """Returns the gradient of the loss of all rows, before clipping, float32 [P]."""
    module = trainer.module
    parameters, total = list(module.parameters()), torch.zeros(())
    for part in micro_batches(rows, trainer.budget, 1, shared=module.pack != "rows")[0]:
        value, _ = step_loss(collate(part, trainer.device), loss, module, module.pack)
        parts = torch.autograd.grad(value, parameters, materialize_grads=True)
        total = total + torch.cat([part.flatten().cpu() for part in parts])
    return total


def _moments(policy: LocalPolicy, groups: Sequence[Group], config: RunConfig) -> Moments:
    moments = Moments()
    for vector in gradients(policy, groups, config):
        moments.add(vector)
    return moments


def _cosine(one: Tensor, other: Tensor) -> float:
    return round(float(torch.nn.functional.cosine_similarity(one, other, dim=0)), 4)


def _groups(policy: LocalPolicy, config: RunConfig, count: int, first: int) -> list[Group]:
    tasks = task_source(config.env.name, **config.env.options).tasks(
        "train", count, config.seed, first
    )
    explore = explorer(config.algorithm, policy, config)

    async def explore_all(some: Sequence[Task]) -> list[Group]:
        return await asyncio.gather(*map(explore, some))

    return [
        group
        for at in range(0, count, 32)
        for group in asyncio.run(explore_all(tasks[at : at + 32]))
    ]


if __name__ == "__main__":
    main()
