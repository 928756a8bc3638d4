"""Tries each method of a user's algorithm on made-up groups.

    plan ─► explore ─► admits, recalls ─► queries ─► rows ─► loss, metrics
                 │
                 └─ in groups that fail, that succeed, that are mixed, and that another actor left

One line names the file and the first rule that a method breaks.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import numpy as np
from msgspec.structs import replace

from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.algorithms.facts import GroupFacts, LeaseFacts, StoredAttempt, attempts_of
from r3l.algorithms.guidance_gain import GROUPS, GroupGain
from r3l.algorithms.rehearsal import rules
from r3l.algorithms.rehearsal.made_up import (
    QUESTION_TOKENS,
    TASK,
    Course,
    MadeUpPolicy,
    MadeUpWorld,
)
from r3l.algorithms.rehearsal.try_loss import changes_the_loss, try_loss
from r3l.algorithms.rows import Row
from r3l.errors import EpisodeError, ExploreFailed, PlanError, R3LError, UserError
from r3l.records import (
    AttemptKey,
    Group,
    GroupPlan,
    Recalled,
    ReflectionRecord,
    SlotResult,
)
from r3l.rollout.env_calls import place
from r3l.rollout.exploration import Decoding, Exploration
from r3l.rollout.group import explore_group
from r3l.rollout.limits import limited

SERVICE_S = 2.0
"""The time that a method has in the buffer's service."""
OTHERS_S = 10.0
STALL_S = 4.0
MANY_SLOTS = 64
"""Groups of more slots are explored only once."""
NO_LIMIT = 1 << 45  # bytes
VERSION = 2

Explore = Callable[[Exploration], Awaitable[None]]
Made = SlotResult | ReflectionRecord


def rehearse(algorithm: Algorithm) -> None:
    """Tries a user's algorithm. Raises UserError, in one line, if a method breaks a rule. Does
    nothing for algorithms of r3l."""
    if ".py:" in algorithm.name:
        _Rehearsal(algorithm).run()


class _Rehearsal:
    """The rehearsal of one algorithm. `stored`: groups that were explored before."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.stored: list[Group] = []
        plain = partial(Algorithm.explore, algorithm)
        self.stored += [
            self._group(f"g{i}", GroupPlan(3), self._explore(i, "mixed", GroupPlan(3), plain))
            for i in (1, 2)
        ]
        self.history = [each for group in self.stored for each in attempts_of(group)]

    def run(self) -> None:
        groups = self._groups(self._plan(0, [], []))
        later = self._plan(1, self.history, [GroupGain(0.5, 2)] * GROUPS)
        if later != groups[0].plan:
            groups += self._groups(later)
        for group in groups:
            with self._calling("admits", SERVICE_S):
                cause = self.algorithm.admits(GroupFacts.of_group(group, VERSION))
            self._check("admits", rules.of_cause(cause))
        with self._calling("admits", SERVICE_S):
            _ = self.algorithm.replaces_groups
        recalled = [each for group in groups for each in self._recalled(group)]
        weights = np.linspace(0.5, 1.5, len(groups)).tolist()
        whole = [_with_a_failed_slot(group) for group in groups]
        replayed = {groups[0].group_id}
        chat = MadeUpPolicy("mixed").chat
        rows = self._rows(Batch(whole, weights, recalled, replayed, VERSION, chat=lambda: chat))
        if rows and changes_the_loss(type(self.algorithm)):
            import_module("torch")  # which takes its own time
            with self._calling("loss", OTHERS_S):
                try_loss(self.algorithm, rows)
        with self._calling("metrics", OTHERS_S):
            metrics = self.algorithm.metrics(whole)
        self._check("metrics", rules.of_metrics(metrics))

    # ── the service ─────────────────────────────────────────────────────────────────────

    def _plan(
        self, epoch: int, history: Sequence[StoredAttempt], gains: Sequence[GroupGain]
    ) -> GroupPlan:
        facts = LeaseFacts(TASK.task_id, epoch, VERSION * epoch, iter(history), gains, _random)
        with self._calling("plan", SERVICE_S):
            plan = self.algorithm.plan(facts)
        keys = {AttemptKey(each.group_id, each.slot) for each in history}
        self._check("plan", rules.of_plan(plan, keys))
        return plan

    def _recalled(self, group: Group) -> list[Recalled]:
        with self._calling("recalls", SERVICE_S):
            chosen = self.algorithm.recalls(
                GroupFacts.of_group(group, VERSION), iter(self.history), _random
            )
        self._check("recalls", rules.of_recalled(chosen, self.history))
        keys = {AttemptKey(each.group_id, each.slot) for each in chosen}
        return self._handed(keys, into=group.group_id)

    def _handed(self, keys: Collection[AttemptKey], into: str = "") -> list[Recalled]:
        """Returns stored attempts by their keys."""
        return [
            Recalled(into, group.group_id, attempt)
            for group in self.stored
            for attempt in group.trajectories
            if AttemptKey(group.group_id, int(attempt.slot)) in keys
        ]

    # ── the actor ───────────────────────────────────────────────────────────────────────

    def _groups(self, plan: GroupPlan) -> list[Group]:
        """Explores groups of a plan."""
        explore = self.algorithm.explore
        made = self._explore(3, "mixed", plan, explore)
        groups = [self._group(f"mixed {plan.kind}", plan, made)]
        if plan.slots > MANY_SLOTS:
            return groups
        half = made[: len(made) // 2]
        self._explore(4, "mixed", plan, explore, half, "continued by another actor")
        others: tuple[Course, ...] = ("failed", "successful")
        for course in others:
            made = self._explore(5, course, plan, explore)
            groups.append(self._group(f"{course} {plan.kind}", plan, made))
        return groups

    def _explore(
        self,
        seed: int,
        course: Course,
        plan: GroupPlan,
        explore: Explore,
        found: Sequence[Made] = (),
        where: str = "",
    ) -> list[Made]:
        """Explores a group, of which `found` is already stored. Returns all that is stored
        afterwards."""
        made, failures = list(found), list[EpisodeError]()

        async def emit(each: Any) -> Any:
            made.append(each)
            return each

        async def awaited(x: Exploration) -> None:
            exploring: Any = explore(x)
            if not inspect.isawaitable(exploring):
                raise PlanError("it must be a coroutine; write `async def explore(self, x)`")
            await exploring

        async def group() -> None:
            x = Exploration(
                TASK,
                policy,
                MadeUpWorld,
                plan,
                Decoding(max_reflection_tokens=QUESTION_TOKENS),
                seed=seed,
                handed=self._handed(plan.handed),
                results={each.slot: each for each in made if isinstance(each, SlotResult)},
                reflections={r.name: r for r in made if isinstance(r, ReflectionRecord)},
                emit=emit,
                on_failure=failures.append,
            )
            await explore_group(awaited, x, stall_s=STALL_S)

        policy = MadeUpPolicy(course)
        name = f"explore, in a group {where or f'of {course} attempts'}"
        with self._calling(name, OTHERS_S):
            asyncio.run(group())
        problem = next((each for each in failures if isinstance(each, ExploreFailed)), "")
        self._check(name, str(problem))
        return made

    def _group(self, name: str, plan: GroupPlan, made: Sequence[Made]) -> Group:
        results = tuple(each for each in made if isinstance(each, SlotResult))
        thoughts = tuple(each for each in made if isinstance(each, ReflectionRecord))
        return Group(name, TASK, plan, "complete", results, thoughts)

    # ── the learner ─────────────────────────────────────────────────────────────────────

    def _rows(self, batch: Batch) -> list[Row]:
        with self._calling("queries", OTHERS_S):
            needs, queries = self.algorithm.needs, list(self.algorithm.queries(batch))
        answers: dict[Any, Any] = {}
        for query in queries:
            self._check("queries", rules.of_query(query, needs, answers))
            answers[query.key] = rules.made_up_answer(query)
        with self._calling("rows", OTHERS_S):
            rows = list(self.algorithm.rows(batch.with_answers(answers)))
        for row in rows:
            self._check("rows", rules.of_row(row))
        return rows

    # ── errors ──────────────────────────────────────────────────────────────────────────

    def _check(self, method: str, problem: str) -> None:
        if problem:
            self._refuse(method, problem)

    def _refuse(self, method: str, problem: str) -> NoReturn:
        raise UserError(" ".join(f"algorithm {self.algorithm.name}: {method}: {problem}".split()))

    @contextmanager
    def _calling(self, method: str, seconds: float) -> Iterator[None]:
        """Turns an error of a user's method into one line. Ends the method after `seconds`."""
        try:
            with limited(seconds, NO_LIMIT):
                yield
        except KeyboardInterrupt:
            raise
        except TimeoutError as error:
            self._refuse(method, f"{error}; a method must not wait or work for long")
        except R3LError as error:
            self._refuse(method, str(error))
        except BaseException as error:
            reason = f"raised {type(error).__name__}: {str(error)[:300]} ({place(error)})"
            self._refuse(method, reason)


def _random() -> np.random.Generator:
    return np.random.default_rng(0)


def _with_a_failed_slot(group: Group) -> Group:
    """Returns a copy of the group in which the first attempt that was not retried has failed. A
    group of fewer than three attempts stays as it is."""
    attempts = group.trajectories
    if len(attempts) < 3:
        return group
    retried = {each.of for each in attempts}
    lost = next(each.slot for each in attempts if each.slot not in retried)
    results = [
        SlotResult(r.slot, "failed", cause="rehearsal", of=r.of) if r.slot == lost else r
        for r in group.results
    ]
    return replace(group, results=tuple(results))
