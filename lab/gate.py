"""The measured gate on a table of rules: what it costs where guidance helps, is useless, or harms.

    python -m lab.gate > docs/gate.md

The policy, the worlds and the optimizer are those of lab.idealised, the gate is the
product's (r3l.algorithms.guidance_gain). The answer at a wrong step of a retry is

    useful     the right one, with probability FOLLOWS
    useless    drawn from the policy, as in any further attempt
    harmful    a wrong one

and every later step is drawn from the policy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import click
import numpy as np

from lab.dry_run import DRY_RUN
from lab.idealised import (
    ALPHA,
    FOLLOWS,
    GROUP_SIZE,
    GROUPS,
    LIMIT,
    REFLECTS,
    WORLDS,
    Array,
    Ints,
    Table,
    World,
)
from r3l.algorithms.guidance_gain import GroupGain, of_group, retry_probability

Guidance = Literal["useful", "useless", "harmful"]
Arm = Literal["with retries", "without", "measured"]
PLAYED = (WORLDS[0], WORLDS[2])
WORTH, RHO, SEEDS = 0.5, 1.0, 5
SHOWN = (5, 10, 20, 40)  # steps at which q is shown
HALF = GROUP_SIZE // 2


@dataclass
class Lesson:
    """What one group teaches and cost: arrays of one shape, its gain, and tokens in attempts."""

    items: Ints
    answers: Ints
    weights: Array
    gain: GroupGain
    tokens: float


def with_retries(table: Table, guidance: Guidance) -> Lesson:
    """A group of HALF attempts, each reflected on, and of the retries of the failed ones."""
    items = np.repeat(table.rows(1), HALF, axis=0)
    base, again = table.play(items), table.play(items)
    wrong = base != 0
    if guidance == "useful":
        told = table.rng.random(items.shape) < FOLLOWS
        again = np.where(wrong & told, 0, again)
    elif guidance == "harmful":
        again = np.where(wrong, table.rng.integers(1, table.world.tools, items.shape), again)
    retried = wrong.any(-1) & (table.rng.random(HALF) < REFLECTS)
    pivots = wrong.argmax(-1)
    after = np.arange(items.shape[-1]) >= pivots[:, None]
    again = np.where(after, again, base)
    first, second = ((played == 0).all(-1).astype(float) for played in (base, again))
    rewards = np.concatenate([first, second[retried]])
    mask = np.where(retried[:, None], after, True)
    masks = np.concatenate([mask, mask[retried]])
    retries = [(HALF + int(i), int(i), float(second[i])) for i in np.flatnonzero(retried)]
    gain = of_group([(i, -1, float(first[i])) for i in range(HALF)] + retries)
    suffixes = float(after[retried].mean(-1).sum())
    return Lesson(
        np.concatenate([items, items[retried]]),
        np.concatenate([base, again[retried]]),
        _advantages(rewards)[:, None] * masks / masks.sum(-1, keepdims=True),
        gain,
        HALF + suffixes + RHO * HALF,
    )


def without(table: Table) -> Lesson:
    """A group of GROUP_SIZE attempts under the same loss."""
    items = np.repeat(table.rows(1), GROUP_SIZE, axis=0)
    answers = table.play(items)
    rewards = (answers == 0).all(-1).astype(float)
    weights = np.repeat(_advantages(rewards)[:, None], items.shape[-1], 1) / items.shape[-1]
    return Lesson(items, answers, weights, GroupGain(0.0, 0), GROUP_SIZE)


def _advantages(rewards: Array) -> Array:
    """R³L's amplification; groups without contrast teach nothing, as in lab.idealised."""
    gaps = rewards - rewards.mean()
    return np.where(rewards >= 1, ALPHA, gaps) * bool(gaps.any())


def run(world: World, guidance: Guidance, arm: Arm, seed: int) -> tuple[int, float, list[float]]:
    """Steps and tokens to a success of WORTH, and q at every step."""
    table, known, tokens, chances = Table(world, seed), list[GroupGain](), 0.0, list[float]()
    fixed = {"with retries": 1.0, "without": 0.0}
    while len(chances) < LIMIT and table.success() < WORTH:
        q = fixed[arm] if arm in fixed else retry_probability(known)
        explore: list[Callable[[], Lesson]] = [
            (lambda: with_retries(table, guidance))
            if table.rng.random() < q
            else (lambda: without(table))
            for _ in range(GROUPS)
        ]
        lessons = [one() for one in explore]
        known = [one.gain for one in lessons if one.gain.slots] + known
        parts = [
            [getattr(one, name) for one in lessons] for name in ("items", "answers", "weights")
        ]
        table.learn(*(np.concatenate(arrays) for arrays in parts))
        tokens += sum(one.tokens for one in lessons)
        chances.append(q)
    return len(chances), tokens, chances


@click.command()
@DRY_RUN
def main(dry_run: bool) -> None:
    """Print the page."""
    if dry_run:
        for world in PLAYED:
            shown = f"base success {world.base_success():.3f}: guidance {get_args(Guidance)}"
            print(f"{shown}, arms {get_args(Arm)}, {SEEDS} seeds, {LIMIT} steps at most")
        return
    print(HEAD)
    for world in PLAYED:
        for guidance in get_args(Guidance):
            found = {
                arm: [run(world, guidance, arm, seed) for seed in range(SEEDS)]
                for arm in get_args(Arm)
            }
            steps, tokens = (
                {arm: float(np.median([one[i] for one in runs])) for arm, runs in found.items()}
                for i in (0, 1)
            )
            best = min(tokens["with retries"], tokens["without"])
            q = [
                np.mean([one[2][at - 1] for one in found["measured"] if len(one[2]) >= at])
                if any(len(one[2]) >= at for one in found["measured"])
                else None
                for at in SHOWN
            ]
            cells = [f"{world.base_success():.3f}", guidance]
            cells += [f"{steps[arm]:.0f}, {tokens[arm]:,.0f}" for arm in get_args(Arm)]
            cells += [f"{tokens['measured'] / best:.2f}"]
            cells += ["–" if value is None else f"{value:.2f}" for value in q]
            print(f"| {' | '.join(cells)} |")
    print(TAIL)


HEAD = f"""# The measured gate

**The gate keeps retries where guidance is useful. Where it harms it leaves out seven in ten or more
from step 5 on, and about seven in eight in the end.
Measuring costs: it takes 1.0 to 1.3 times the tokens of the better arm.**

The [gate](algorithm.md#guidance-gain-and-gate) is the product's. The policy is a table
(`lab/gate.py`), so this shows the gate and not a network. *Useful* guidance tells the
answer, *useless* guidance changes nothing, *harmful* guidance gives a wrong answer. Optimizer steps
and tokens, in attempts at ρ {RHO:g}, to a success of {WORTH:g}, medians of {SEEDS} seeds. *Over the
better* divides tokens. q is the mean chance of retries at a step.

| base success | guidance | with retries | without | measured | over the better | {
    " | ".join(f"q at step {at}" for at in SHOWN)
} |
| --- | --- | --- | --- | --- | --- | {" | ".join("---" for _ in SHOWN)} |"""
TAIL = """
- It judges by reward alone. At base success 0.136 useful retries cost more tokens than they save,
  and it keeps them.
- Useless guidance has a gain near 0, so q stays between 0.37 and 0.74 here. The gate then saves a
  quarter of what retries cost at base success 0.136, and three fifths at 0.005."""

if __name__ == "__main__":
    main()
