"""A prediction without a network: R³L against GRPO on a table of rules.

    python -m lab.idealised > lab/lines/prediction.json

The workshop's policy is reduced to what must be learned, a softmax over tools for each item whose
rule was withheld. Everything else has a fixed chance: rules that are known, notes that are read,
reflections that name the right step, advice that is followed. Both algorithms take the same steps
of Adam on the same number of groups. So the table says what the *method* should give in a world,
without what a network adds: knowledge carried from item to item, forgetting, words.

n: stations, t: tools, w: withheld rules. The prediction was written down before the runs.
"""

import json
from dataclasses import dataclass
from math import comb
from typing import Literal

import click
import numpy as np
import numpy.typing as npt

from lab.dry_run import DRY_RUN

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Method = Literal["r3l", "grpo"]
METHODS: tuple[Method, ...] = ("r3l", "grpo")

ITEMS = 12
KNOWN = 0.99  # a rule that was taught, or an exception in the note, is applied
REFLECTS = 0.96  # a reflection parses and names the right step
FOLLOWS = 0.97  # a told answer is given
GROUPS, GROUP_SIZE, ALPHA = 16, 8, 3.0
LR, LIMIT = (
    0.08,
    1500,
)  # with this rate GRPO takes 15 steps in the demo's world, as it does with a network
BETAS = (0.9, 0.95)
WORTH = (0.5, 0.8)
RHOS = (2.4, 1.0, 0.3)


@dataclass(frozen=True)
class World:
    """A cell of the regime map: `stations` in a row, `tools` to choose from, `withheld` rules,
    `exceptions` of each row that the note tells."""

    stations: int
    tools: int
    withheld: int
    exceptions: int = 1

    def base_success(self) -> float:
        """Chance that a first attempt of the warm policy succeeds, by enumeration."""
        read = self.stations - self.exceptions
        chances = (
            comb(self.withheld, k)
            * comb(ITEMS - self.withheld, read - k)
            / comb(ITEMS, read)
            * self.tools**-k
            * KNOWN ** (read - k)
            for k in range(read + 1)
        )
        return float(sum(chances) * KNOWN**self.exceptions)


WORLDS = (World(5, 6, 5), World(5, 6, 8), World(5, 6, 10), World(5, 6, 11), World(5, 6, 12, 0))
"""Base success of about 0.13, 0.02, 0.005, 0.002 and 0.0001. The row is as long as in the demo: a
policy of this size does not read longer ones well enough to get there when the rules are told."""


class Table:
    """The policy: logits [w, t] of the withheld rules, answer 0 being right for each."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.rng = world, np.random.default_rng(seed)
        self.logits = np.zeros((world.withheld, world.tools))
        self.moments = np.zeros((2, *self.logits.shape))
        self.steps = 0

    def chances(self) -> Array:
        """Probabilities [w, t] of the answers."""
        weights = np.exp(self.logits - self.logits.max(1, keepdims=True))
        return np.asarray(weights / weights.sum(1, keepdims=True))

    def rows(self, count: int) -> Ints:
        """Items [count, n] of random rows; -1 where an answer is known or in the note."""
        order = self.rng.permuted(np.tile(np.arange(ITEMS), (count, 1)), axis=1)
        items = order[:, : self.world.stations]
        items[:, : self.world.exceptions] = -1
        items = self.rng.permuted(items, axis=1)
        return np.where(items < self.world.withheld, items, -1)

    def success(self, tasks: int = 2000) -> float:
        """Mean chance of success of a first attempt."""
        right = np.append(self.chances()[:, 0], KNOWN)  # index -1: known
        return float(right[self.rows(tasks)].prod(1).mean())

    def play(self, items: Ints) -> Ints:
        """Answers [..., n] at items [..., n]; 0 is right, t a slip at a known item."""
        chances = np.zeros((self.world.withheld + 1, self.world.tools + 1))
        chances[:-1, :-1] = self.chances()
        chances[-1, [0, -1]] = KNOWN, 1 - KNOWN
        draws = self.rng.random(items.shape)[..., None]
        return np.asarray((draws > chances[items].cumsum(-1)[..., :-1]).sum(-1))

    def learn(self, items: Ints, answers: Ints, weights: Array) -> None:
        """One step of Adam on Σ weight · log π(answer | item), over arrays of one shape."""
        learned = items >= 0
        rows, chosen, weight = items[learned], answers[learned], weights[learned]
        gradient = np.zeros_like(self.logits)
        np.add.at(gradient, (rows, chosen), weight)
        np.add.at(gradient, rows, -weight[:, None] * self.chances()[rows])
        self.steps += 1
        first, second = BETAS
        self.moments[0] = first * self.moments[0] + (1 - first) * gradient
        self.moments[1] = second * self.moments[1] + (1 - second) * gradient**2
        mean = self.moments[0] / (1 - first**self.steps)
        square = self.moments[1] / (1 - second**self.steps)
        self.logits += LR * mean / (np.sqrt(square) + 1e-8)


def grpo_step(table: Table) -> float:
    """One step of GRPO; returns the attempts that were sampled."""
    items = np.repeat(table.rows(GROUPS)[:, None], GROUP_SIZE, axis=1)
    answers = table.play(items)
    rewards = (answers == 0).all(-1).astype(float)
    gaps = rewards - rewards.mean(1, keepdims=True)
    advantages = gaps / (rewards.std(1, keepdims=True) + 1e-6)
    weights = np.broadcast_to(advantages[..., None] / items.shape[-1], items.shape)
    table.learn(items, answers, weights)
    return float(GROUPS * GROUP_SIZE)


def r3l_step(table: Table) -> tuple[float, float]:
    """One step of R³L; returns (attempts sampled, a retry counting its suffix, reflections)."""
    half = GROUP_SIZE // 2
    items = np.repeat(table.rows(GROUPS)[:, None], half, axis=1)
    base = table.play(items)
    wrong = base != 0
    pivots = wrong.argmax(-1)
    retried = wrong.any(-1) & (table.rng.random(pivots.shape) < REFLECTS)
    again = table.play(items)
    told = table.rng.random(items.shape) >= FOLLOWS  # 0 if the advice is followed
    again = np.where(wrong, told.astype(int) * table.rng.integers(1, table.world.tools), again)
    after = np.arange(items.shape[-1]) >= pivots[..., None]
    again = np.where(after, again, base)
    rewards = np.stack([~wrong.any(-1), (again == 0).all(-1)], axis=-1).astype(float)
    present = np.stack([np.ones_like(retried), retried], axis=-1)
    mean = (rewards * present).sum((1, 2)) / present.sum((1, 2))
    gaps = rewards - mean[:, None, None]
    contrast = (gaps * present != 0).any((1, 2))[:, None, None]
    advantages = np.where(rewards >= 1, ALPHA, gaps) * present * contrast
    mask = np.where(retried[..., None], after, True)
    weights = mask / mask.sum(-1, keepdims=True)
    both = [advantages[..., i, None] * weights for i in (0, 1)]
    table.learn(np.stack([items, items]), np.stack([base, again]), np.stack(both))
    suffixes = float((after.mean(-1) * retried).sum())
    return GROUPS * half + suffixes, float(GROUPS * half)


@dataclass
class Cost:
    """What it took to reach a success."""

    steps: int
    attempts: float
    reflections: float

    def tokens(self, rho: float) -> float:
        """In units of one attempt, if a reflection costs `rho` of them."""
        return self.attempts + rho * self.reflections


def costs(world: World, method: Method, seed: int) -> list[Cost | None]:
    """What a method needs to reach each success of WORTH; None if it takes over LIMIT steps."""
    table, spent = Table(world, seed), Cost(0, 0, 0)
    found: list[Cost | None] = []
    while len(found) < len(WORTH) and spent.steps < LIMIT:
        reflections = 0.0
        if method == "grpo":
            attempts = grpo_step(table)
        else:
            attempts, reflections = r3l_step(table)
        spent = Cost(spent.steps + 1, spent.attempts + attempts, spent.reflections + reflections)
        success = table.success()
        found += [spent for worth in WORTH[len(found) :] if success >= worth]
    return [*found, *[None] * (len(WORTH) - len(found))]


def predict(world: World, seeds: int = 5) -> dict[str, object]:
    """The prediction for one cell: median steps, and ratios R³L / GRPO by step and by token."""
    line: dict[str, object] = vars(world) | {"base_success": round(world.base_success(), 5)}
    ours, theirs = (
        list(zip(*(costs(world, method, seed) for seed in range(seeds)), strict=True))
        for method in METHODS
    )
    for worth, mine, other in zip(WORTH, ours, theirs, strict=True):
        if not all((*mine, *other)):
            line[f"to_{worth}"] = None
            continue
        steps = [float(np.median([cost.steps for cost in runs if cost])) for runs in (mine, other)]
        ratio = {"steps": round(steps[0] / steps[1], 2)}
        for rho in RHOS:
            tokens = [np.median([c.tokens(rho) for c in runs if c]) for runs in (mine, other)]
            ratio[f"tokens_rho_{rho}"] = round(float(tokens[0] / tokens[1]), 2)
        line[f"to_{worth}"] = {"r3l_steps": steps[0], "grpo_steps": steps[1], "ratio": ratio}
    return line


@click.command()
@DRY_RUN
def main(dry_run: bool) -> None:
    """Print the prediction."""
    if dry_run:
        for world in WORLDS:
            print(f"{world}, base success {world.base_success():.5f}: {METHODS}, to {WORTH}")
        return
    print(json.dumps([predict(world) for world in WORLDS], indent=1))


if __name__ == "__main__":
    main()
