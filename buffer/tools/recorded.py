"""What a run recorded of its own pace: how long its groups and steps took.

Everything is read from the store: the times at which groups were leased and completed, and draws
drawn and committed. Steps of an earlier launch of the run, if there were several, count too, but
not the time between two launches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import mean, median
from typing import NamedTuple

import numpy as np

from buffer.groups.results import NO_CONTRAST
from buffer.storage.layout import tag_prefix
from buffer.storage.rows import DrawRow, GroupRow, LedgerRow
from buffer.storage.store import Store
from buffer.storage.transaction import Txn
from r3l.errors import UserError
from r3l.records import GroupPlan, Task

FEWEST_GROUPS, FEWEST_STEPS = 8, 3
LEAST_RANGE = 0.5  # of the numbers of groups at a time, to see what company costs
PAUSE = 20.0  # a wait of so many median steps is the time between two launches


@dataclass(frozen=True)
class Played:
    """A group as it was recorded: seconds from lease to completion if its actor had played nothing
    else, rewards of its base attempts and retries, its task."""

    seconds: float
    rewards: tuple[float, ...]
    plan: GroupPlan
    task_id: str


class Span(NamedTuple):
    """A time in which an actor held the same number of groups."""

    start: float
    end: float
    held: int


@dataclass(frozen=True)
class Pace:
    """Means over the steps: seconds from commit to commit, the learner's share of them without a
    batch, the actors' share without a group to play, steps between sampling and draw."""

    step_s: float
    learner_idle: float
    actor_idle: float
    staleness: float


@dataclass(frozen=True)
class Recorded:
    """What a store tells. `places`: groups that an actor plays at the same time; `slowdown` κ: n of
    them at a time take 1 + κ (n - 1) times as long as one alone; `step_s`: seconds of every step
    from draw to commit; `between_s`: from a commit to the learner's next request; `load_s`: from a
    commit until an actor plays with the new weights."""

    groups: tuple[Played, ...]
    tasks: tuple[Task, ...]
    actors: int
    places: int
    per_step: int
    step_s: tuple[float, ...]
    between_s: float
    load_s: float
    pace: Pace
    slowdown: float = 0.0

    @property
    def success(self) -> dict[str, float]:
        """Mean reward by task."""
        found = defaultdict[str, list[float]](list)
        for one in self.groups:
            found[one.task_id] += one.rewards
        return {task: mean(rewards) for task, rewards in found.items() if rewards}


def read(store: Store) -> Recorded:
    """The record of a run. Raises UserError for a store with too few groups or steps."""
    with store.read() as txn:
        rows = [row for row in txn.rows() if row.purpose == "train"]
        ledger = {step.step: step for step in txn.steps()}
        draws = {step: txn.draw(one.draw_id) for step, one in ledger.items()}
        tasks = tuple(txn.task("train", "", index) for index in range(_count(txn)))
    played = [_timed(row) for row in rows if row.done and "leased" in row.times]
    played = [row for row in played if "complete" in row.times]
    steps = [(ledger[n], drawn) for n, drawn in sorted(draws.items()) if drawn is not None]
    if len(played) < FEWEST_GROUPS or len(steps) < FEWEST_STEPS:
        raise UserError(
            f"store {store.folder}: holds {len(played)} groups with times and {len(steps)} steps; "
            f"a rehearsal needs {FEWEST_GROUPS} and {FEWEST_STEPS}"
        )
    held = {name: _held_groups(played, name) for name in {row.actor for row in played}}
    places = max(1, round(median(_places(spans) for spans in held.values())))
    slowdown = _slowdown(played, held)
    return Recorded(
        groups=tuple(
            Played(_alone_s(row, held[row.actor], slowdown), row.rewards, row.plan, row.task_id)
            for row in played
        ),
        tasks=tasks,
        actors=len(held),
        places=places,
        per_step=len(steps[-1][1].groups),
        step_s=tuple(max(done.when - drawn.when, 0.0) for done, drawn in steps),
        between_s=_between(steps, played),
        load_s=_load(steps, played),
        pace=_pace(steps, played, places, len(held)),
        slowdown=slowdown,
    )


def _count(txn: Txn) -> int:
    """Number of training tasks; all are played, so that a sampler chooses as in the run."""
    return sum(1 for _ in txn.keys("task", tag_prefix("train", "")))


def _timed(row: GroupRow) -> GroupRow:
    """A group with the time of its completion; one that was replaced expired at that time."""
    if row.cause == NO_CONTRAST and "complete" not in row.times:
        return row.but(times=row.times | {"complete": row.times["expired"]})
    return row


def _held_groups(rows: list[GroupRow], actor: str) -> list[Span]:
    """How many groups an actor held at the same time, over the time of the run."""
    changes = sorted(
        change
        for row in rows
        if row.actor == actor
        for change in ((row.times["leased"], 1), (row.times["complete"], -1))
    )
    levels = accumulate(by for _, by in changes)
    ends = [when for when, _ in changes[1:]]
    return [
        Span(when, end, held) for (when, _), end, held in zip(changes, ends, levels, strict=False)
    ]


def _places(spans: list[Span]) -> int:
    """The most groups that were held for a twentieth of the time."""
    spent = defaultdict[int, float](float)
    for span in spans:
        spent[span.held] += span.end - span.start
    total = sum(spent.values())
    often = [held for held, seconds in spent.items() if held and seconds >= total / 20]
    return max(often or spent)


def _slowdown(rows: list[GroupRow], held: dict[str, list[Span]]) -> float:
    """κ of Recorded, by least squares of the groups' seconds on the mean number that their actor
    held meanwhile; 0 if that says that company makes them faster, at most 1."""
    seconds = [row.times["complete"] - row.times["leased"] for row in rows]
    company = [
        sum((until - since) * number for since, until, number in _during(row, held[row.actor]))
        / max(row.times["complete"] - row.times["leased"], 1e-9)
        for row in rows
    ]
    if np.ptp(company) < LEAST_RANGE:
        return 0.0
    per_group, alone = np.polyfit(np.array(company) - 1, seconds, 1)
    if per_group <= 0:
        return 0.0
    return float(min(per_group / alone, 1.0)) if alone > 0 else 1.0


def _alone_s(row: GroupRow, spans: list[Span], slowdown: float) -> float:
    """Seconds of a group if its actor had played nothing else."""
    return sum(
        (until - since) / (1 + slowdown * (number - 1))
        for since, until, number in _during(row, spans)
    )


def _during(row: GroupRow, spans: list[Span]) -> Iterator[Span]:
    """The parts of spans in which a group was played."""
    leased, complete = row.times["leased"], row.times["complete"]
    first = bisect_right(spans, leased, key=lambda span: span.end)
    for since, until, number in spans[first:]:
        if since >= complete:
            return
        yield Span(max(since, leased), min(until, complete), number)


def _between(steps: list[tuple[LedgerRow, DrawRow]], rows: list[GroupRow]) -> float:
    """Seconds from a commit to the next draw where a batch was there already, so that nothing but
    the learner was waited for; 0 if that was never so."""
    ready = {row.group_id: row.times["complete"] for row in rows}
    found = [
        after.when - done.when
        for (done, _), (_, after) in pairwise(steps)
        if all(ready.get(group, done.when + 1) <= done.when for group in after.groups)
    ]
    return median(found) if found else 0.0


def _load(steps: list[tuple[LedgerRow, DrawRow]], rows: list[GroupRow]) -> float:
    """Seconds from a commit to the first lease of a group that was sampled by its version."""
    first = dict[int, float]()
    for row in rows:
        first[row.oldest] = min(row.times["leased"], first.get(row.oldest, row.times["leased"]))
    found = [first[done.version] - done.when for done, _ in steps if done.version in first]
    usual = sorted(seconds for seconds in found if seconds > 0)
    return usual[len(usual) // 4] if usual else 0.0


def _pace(
    steps: list[tuple[LedgerRow, DrawRow]], rows: list[GroupRow], places: int, actors: int
) -> Pace:
    """The means of the run after its first step."""
    ends = [done.when for done, _ in steps]
    times = [after - before for before, after in pairwise(ends)]
    usual = [seconds for seconds in times if seconds <= PAUSE * median(times)]
    trained = [done.when - drawn.when for done, drawn in steps[1:]]
    oldest = {row.group_id: row.oldest for row in rows}
    ages = [
        drawn.version - oldest[group]
        for _, drawn in steps[1:]
        for group in drawn.groups
        if group in oldest
    ]
    step_s = mean(usual)
    played = _held_s(rows, ends[0], ends[-1]) / (places * actors * max(ends[-1] - ends[0], 1e-9))
    return Pace(
        step_s=step_s,
        learner_idle=max(0.0, 1 - mean(trained) / max(step_s, 1e-9)),
        actor_idle=max(0.0, 1 - played),
        staleness=mean(ages) if ages else 0.0,
    )


def _held_s(rows: list[GroupRow], start: float, end: float) -> float:
    """Seconds of all groups within a time."""
    spans = ((max(row.times["leased"], start), min(row.times["complete"], end)) for row in rows)
    return sum(max(0.0, until - since) for since, until in spans)


def bucket(success: float) -> str:
    """How difficult a task is, by its recorded mean reward."""
    return ("hard", "medium", "easy")[bisect_right((1 / 3, 2 / 3), success)]
