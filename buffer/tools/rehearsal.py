"""A run rehearsed in simulated time: recorded groups and steps, played through the buffer's code.

    actors ─ lease ─► buffer.groups ◄─ draw, commit ─ learner
       └─ put, after a recorded group's seconds          └─ after a recorded step's

Leases, results, draws and commits are the operations of the service, on a store of their own, so
admission, samplers, expiry and replacement are the real ones. The k-th group has the length and the
rewards of the k-th recorded one, or the nearest of its task, and takes longer the more groups its
actor plays beside it, as the recorded ones did; a step takes for each of its groups the seconds of
the recorded step that came after as many groups. So every actor is as fast as a recorded one,
whatever their number: they do not share a processor, and neither does the learner. Evaluations,
failures and restarts are left out.
"""

from __future__ import annotations

import heapq
import random
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from buffer.groups import draws, leases, results, tasks
from buffer.groups.index import Index
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.rows import DrawRow
from buffer.storage.store import Store
from buffer.tools.recorded import Pace, Played, Recorded, bucket
from buffer.wire import operations
from buffer.wire.operations import Lease
from r3l import codec
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.records import Role, SlotResult, Trajectory

WARM_UP = 0.2  # share of the steps that come before those that count
LONG_S = 1e9
MOST = 100  # groups for each that is trained; a run that needs more gets nowhere
RETRY_S = 0.25  # an actor without a lease asks again


@dataclass(frozen=True)
class Outcome:
    """What a rehearsal predicts: the pace of the steps after the warm-up, and the groups that
    expired by cause and difficulty of their task, as shares of all that were completed."""

    actors: int
    pace: Pace
    expired: dict[tuple[str, str], float]


@dataclass(frozen=True)
class Playing:
    """A group under way, and the version that samples it."""

    lease: Lease
    played: Played
    version: int


@dataclass
class Actor:
    """`playing`: groups under way, a heap by how far `played_s` is when they end; `played_s`:
    seconds that a group alone would have had for what one of them has had; `since`: when that was
    brought up to date; `next_end`: number of the event that ends the next; `waits`: for a lease."""

    name: str
    version: int = 0
    playing: list[tuple[float, int, Playing]] = field(default_factory=list)
    played_s: float = 0.0
    since: float = 0.0
    next_end: int = 0
    waits: bool = False


@dataclass
class Rehearsal:
    """One simulated run of `actors` actors under `config`, for `steps` optimizer steps."""

    recorded: Recorded
    config: RunConfig
    actors: int
    steps: int
    now: float = 0.0
    _events: list[tuple[float, int, Any, tuple[Any, ...]]] = field(default_factory=list)
    _count: int = 0
    _ends: list[float] = field(default_factory=list)
    _trained_s: list[float] = field(default_factory=list)
    _ages: list[list[int]] = field(default_factory=list)
    _busy: list[float] = field(default_factory=list)
    _busy_s: float = 0.0
    _learner_waits: bool = True

    def run(self) -> Outcome:
        """Play to the last step. Raises UserError if no more batch can be filled."""
        longer = {"lease_s": LONG_S / 100, "draw_s": 0.0, "map_gib": 4.0}
        buffer = self.config.buffer.model_copy(update=longer)
        self.config = self.config.model_copy(update={"buffer": buffer})
        self._random = random.Random(self.config.seed)
        self._by_task = defaultdict[str, list[int]](list)
        for place, one in enumerate(self.recorded.groups):
            self._by_task[one.task_id].append(place)
        self._leased = 0
        self._actors = [Actor(f"actor-{number}") for number in range(self.actors)]
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "buffer", map_gib=4.0)
            try:
                self._index = Index.load(store, self.config.buffer)
                with store.write() as self._txn:
                    given = operations.AddTasks(self.recorded.tasks, "train", "", 0)
                    self._do(tasks.add_tasks, given)
                    self._play()
                    return self._outcome()
            finally:
                store.close()

    def _play(self) -> None:
        for actor in self._actors:
            self._at(0.0, self._fill, actor)
        while len(self._ends) < self.steps:
            most = MOST * self.config.learner.groups_per_step * (len(self._ends) + 1)
            if not self._events or self._leased > most:
                raise UserError(
                    f"rehearsal: step {len(self._ends) + 1} never gets its batch of "
                    f"{self.config.learner.groups_per_step} groups; no recorded group has what it "
                    "needs"
                )
            when, _, event, arguments = heapq.heappop(self._events)
            self._busy_s += (when - self.now) * sum(len(actor.playing) for actor in self._actors)
            self.now = when
            event(*arguments)

    # ── actors ──────────────────────────────────────────────────────────────────────────

    def _fill(self, actor: Actor) -> None:
        """Lease a group if there is a free place, then let the other actors have theirs."""
        actor.waits = False
        if len(actor.playing) == self.recorded.places:
            return
        plan = self.config.algorithm.build().plan()
        asked = operations.AcquireLease(actor.name, actor.version, plan, {})
        lease = self._do(leases.lease, asked, f"l{self._count}")
        if not isinstance(lease, Lease):
            actor.waits = True
            return
        self._advance(actor)
        played = self._recorded(lease.task.task_id)
        ends = actor.played_s + played.seconds
        one = Playing(lease, played, actor.version)
        heapq.heappush(actor.playing, (ends, self._leased, one))
        self._next_end(actor)
        self._at(0.0, self._fill, actor)

    def _advance(self, actor: Actor) -> None:
        """Bring `played_s` up to date; it must be before the number of groups changes."""
        actor.played_s += (self.now - actor.since) / self._slower(actor)
        actor.since = self.now

    def _slower(self, actor: Actor) -> float:
        return 1 + self.recorded.slowdown * (max(len(actor.playing), 1) - 1)

    def _next_end(self, actor: Actor) -> None:
        """Plan the end of the next group; what was planned before is void."""
        actor.next_end += 1
        if actor.playing:
            left = max(actor.playing[0][0] - actor.played_s, 0.0) * self._slower(actor)
            self._at(left, self._finish, actor, actor.next_end)

    def _recorded(self, task_id: str) -> Played:
        """The recorded group of the task that was leased next to as many others as this one; if
        there is none, the one that was leased after as many others: a run has phases."""
        groups = self.recorded.groups
        place, self._leased = self._leased % len(groups), self._leased + 1
        own = self._by_task.get(task_id, [])
        return groups[min(own, key=lambda one: abs(one - place), default=place)]

    def _finish(self, actor: Actor, number: int) -> None:
        if number != actor.next_end:
            return
        self._advance(actor)
        _, _, one = heapq.heappop(actor.playing)
        self._next_end(actor)
        sent = tuple(_results(one.lease, one.played, one.version))
        self._do(results.put, operations.Put(one.lease.group_id, actor.name, None, sent))
        self._draw()
        self._wake()
        self._fill(actor)

    def _wake(self) -> None:
        for actor in self._actors:
            if actor.waits:
                actor.waits = False
                self._at(self._random.random() * RETRY_S, self._fill, actor)

    # ── the learner ─────────────────────────────────────────────────────────────────────

    def _draw(self) -> None:
        if not self._learner_waits:
            return
        version, size = len(self._ends), self.config.learner.groups_per_step
        asked = operations.DrawGroups(size, version, operations.LEARNER)
        drawn = self._do(draws.draw, asked, f"d{self._count}")
        if drawn is None:
            return
        self._learner_waits = False
        rows = [self._index.live.get(name) or self._txn.row(name) for name in drawn.groups]
        self._ages.append([version - row.oldest for row in rows if row is not None])
        seconds = size * self._trained_s_per_group(version * size)
        self._trained_s.append(seconds)
        self._at(seconds, self._commit, drawn, version + 1)
        self._wake()

    def _trained_s_per_group(self, trained: int) -> float:
        """Of the recorded step that came after as many groups, or the last: a run has phases."""
        step_s, per_step = self.recorded.step_s, self.recorded.per_step
        return step_s[min(trained // per_step, len(step_s) - 1)] / per_step

    def _commit(self, drawn: DrawRow, version: int) -> None:
        self._do(draws.commit, operations.Commit(drawn.draw_id, version, version))
        self._ends.append(self.now)
        self._busy.append(self._busy_s)
        self._at(self.recorded.between_s, self._ask)
        if self.config.learner.publishes(version):
            for actor in self._actors:
                self._at(self.recorded.load_s, self._load, actor, version)
        self._wake()

    def _ask(self) -> None:
        self._learner_waits = True
        self._draw()

    def _load(self, actor: Actor, version: int) -> None:
        actor.version = max(actor.version, version)
        self._fill(actor)

    # ── the buffer's operations, the clock, the result ──────────────────────────────────

    def _do(self, operation: Any, *arguments: Any) -> Any:
        work = UnitOfWork(self._txn, self._index, self.config, self.now)
        result = operation(work, *arguments)
        work.finish()
        return result

    def _at(self, seconds: float, event: Any, *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, event, arguments))

    def _outcome(self) -> Outcome:
        first = max(1, int(WARM_UP * self.steps))
        span = self._ends[-1] - self._ends[first - 1]
        steps = self.steps - first
        trained = sum(self._trained_s[first : self.steps])
        ages = [age for of_step in self._ages[first : self.steps] for age in of_step]
        places = self.recorded.places * self.actors
        busy = (self._busy[-1] - self._busy[first - 1]) / max(places * span, 1e-9)
        pace = Pace(
            step_s=span / max(steps, 1),
            learner_idle=max(0.0, 1 - trained / max(span, 1e-9)),
            actor_idle=max(0.0, 1 - busy),
            staleness=float(np.mean(ages)) if ages else 0.0,
        )
        return Outcome(self.actors, pace, self._expired())

    def _expired(self) -> dict[tuple[str, str], float]:
        """By cause and difficulty: the share of the groups of that difficulty that were completed
        and then expired."""
        success = self.recorded.success
        whole, lost = Counter[str](), Counter[tuple[str, str]]()
        for row in self._txn.rows():
            if row.state in ("leased", "filling"):
                continue
            kind = bucket(success.get(row.task_id, 0.0))
            whole[kind] += 1
            if row.state == "expired":
                lost[row.cause, kind] += 1
        return {key: number / whole[key[1]] for key, number in sorted(lost.items())}


def _results(lease: Lease, played: Played, version: int) -> list[msgspec.Raw]:
    """Results for every slot: the recorded rewards, base attempts first; the others failed."""
    slots: list[tuple[Role, int]] = [("base", slot) for slot in range(lease.plan.base)]
    slots += [("distilled", slot) for slot in range(lease.plan.distilled)]
    sent = []
    for (role, slot), reward in zip(slots, (*played.rewards, *[None] * len(slots)), strict=False):
        if reward is None:
            result = SlotResult(role, slot, "not_triggered" if role == "distilled" else "failed")
            if role == "base":
                result = SlotResult(role, slot, "failed", cause="rehearsed")
        else:
            result = SlotResult(
                role, slot, "done", trajectory=_attempt(role, slot, reward, version)
            )
        sent.append(msgspec.Raw(codec.encode(result)))
    return sent


def _attempt(role: Role, slot: int, reward: float, version: int) -> Trajectory:
    """The shortest attempt with this reward and version."""
    more = {"parent": 0, "pivot": 0} if role == "distilled" else {}
    return Trajectory(
        role=role,
        slot=slot,
        token_ids=np.zeros(2, np.int32),
        response_mask=np.array([False, True]),
        logprobs=np.array([0.0, -1.0], np.float32),
        step_spans=np.array([[1, 2]], np.int32),
        step_versions=np.array([version], np.int32),
        step_newest_versions=np.array([version], np.int32),
        step_seconds=np.zeros(1, np.float32),
        reward=reward,
        system="",
        observations=("", ""),
        actions=("",),
        **more,  # type: ignore[arg-type]
    )
