"""What guidance brings on a frozen policy: five kinds of it, and three ways to write reflections.

task ─► SLOTS first attempts ─► each: a reflection per way ─► each failed one: a retry per kind
                                                     d = R(retry) − mean R of the other attempts
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from envs import exploring, registry
from envs.demonstrations import demonstrating
from lab.real_model.doses import SETTINGS
from launch.evaluation.play import own_engine
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.facts import LeaseFacts
from r3l.algorithms.guidance_gain import estimate, of_group
from r3l.algorithms.shared.reflect_and_retry import ReflectAndRetry
from r3l.records import (
    AttemptKey,
    Group,
    GroupPlan,
    Origin,
    Task,
    Trajectory,
)
from r3l.rollout import reflection
from r3l.rollout.exploration import Exploration
from r3l.rollout.policy_interface import Policy
from r3l.rollout.prompts import Prompts
from r3l.rollout.reflection import Reflection
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.training.group_memory import Memory

TASKS, SLOTS, AT_ONCE = 72, 4, 8
WAYS = {"free": None, "schema": False, "outcome first": True}
"""How reflections are decoded: without their schema, or with it and the outcome first or not."""
EMPTY = Reflection("", None, "failure", "", 0)
SHOWN = 2
"""Examples that a line keeps of each way."""


@dataclass
class Thought:
    """A reflection, as it was written. `parsed`: None if it cannot be read."""

    text: str
    tokens: int
    cause: str = ""
    parsed: Reflection | None = None


@dataclass
class Slot:
    """A first attempt with its reflections by way, and the rewards of its retries by kind.
    `group_id`: of the group that it belongs to."""

    task: int
    base: Trajectory
    thoughts: dict[str, Thought] = field(default_factory=dict)
    retries: dict[str, float] = field(default_factory=dict)
    group_id: str = ""

    @property
    def failed(self) -> bool:
        return self.base.reward < 1.0

    def guide(self, way: str) -> Reflection | None:
        """The reflection, if it asks for a retry of a failed attempt."""
        thought = self.thoughts[way].parsed
        wanted = self.failed and thought is not None and thought.triggers_retry(self.base.num_steps)
        return thought if wanted else None


class ReflectInEveryWay(ReflectAndRetry):
    """SLOTS attempts; each gets a reflection per way, and no retry."""

    group_size: int = SLOTS

    async def explore(self, x: Exploration) -> None:
        prompts = await x.prompts()

        async def reflected(slot: int) -> None:
            base = await x.play(slot)
            if base is None:
                return
            for way, first in WAYS.items():
                schema = None
                if first is not None:
                    schema = reflection.json_schema(base.num_steps, outcome_first=first)
                read = partial(self.read, base=base)
                question = self.question(base, prompts)
                await x.ask(_name(way, slot), question, of=slot, schema=schema, read=read)

        await x.each(range(x.plan.slots), reflected)


class RetryInEveryWay(Algorithm):
    """Retries of one stored attempt from its first step, each under another kind of guidance."""

    group_id: str
    slot: int
    guidance: dict[str, str]

    def plan(self, lease: LeaseFacts) -> GroupPlan:
        return GroupPlan(len(self.guidance), handed=(AttemptKey(self.group_id, self.slot),))

    async def explore(self, x: Exploration) -> None:
        shown, start = [*self.guidance.values()], Origin(self.group_id, self.slot, 0)
        await x.each(
            range(x.plan.slots), lambda slot: x.play(slot, context=shown[slot], start=start)
        )


def _name(way: str, slot: int) -> str:
    return f"{way} {slot}"


def _thought(group: Group, way: str, base: Trajectory) -> Thought:
    [kept] = [each for each in group.reflections if each.name == _name(way, base.slot)]
    parsed = None if kept.cause else reflection.parse(kept.text, base.num_steps)
    return Thought(kept.text, kept.tokens, kept.cause, parsed)


class Probe:
    """Plays with a policy that does not change."""

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        self.policy, self.config, self.memory = policy, config, Memory()
        self.teacher = demonstrating(config.env.name, **config.env.options)
        self.prompts = Prompts(self.teacher.spec.prompts)
        self.free = asyncio.Semaphore(AT_ONCE)

    async def slots(self, number: int, task: Task) -> list[Slot]:
        """Plays the first attempts at a task and asks for their reflections."""
        group = await self._explore(ReflectInEveryWay(), task)
        found = []
        for base in group.trajectories:
            thoughts = {way: _thought(group, way, base) for way in WAYS}
            found.append(Slot(number, base, thoughts, group_id=group.group_id))
        return found

    async def retry(self, slot: Slot, task: Task, guidance: Mapping[str, str]) -> None:
        """Plays a retry from the first step under each kind of `guidance`."""
        algorithm = RetryInEveryWay(
            group_id=slot.group_id, slot=slot.base.slot, guidance=dict(guidance)
        )
        group = await self._explore(algorithm, task)
        kinds = [*guidance]
        slot.retries |= {kinds[each.slot]: each.reward for each in group.trajectories}

    async def _explore(self, algorithm: Algorithm, task: Task) -> Group:
        env, decoding = self.config.env, self.config.actor.decoding()
        async with self.free:
            return await exploring.explore(
                algorithm,
                task,
                self.policy,
                env.name,
                options=env.options,
                decoding=decoding,
                memory=self.memory,
            )

    def guidance(self, place: int, failed: Sequence[Slot], task: Task) -> dict[str, str]:
        """Returns the text that each retry of the failed slot at `place` is shown, by kind."""
        slot, prompts = failed[place], self.prompts
        own = {f"own {way}": slot.guide(way) for way in WAYS}
        around = (*failed[place + 1 :], *failed[:place])
        others = (other.guide("schema") for other in around if other.task != slot.task)
        own["another"] = next((guide for guide in others if guide is not None), None)
        own |= {"empty": EMPTY, "right": self._right(slot, task)}
        return {"plain": ""} | {
            kind: prompts.guidance(guide, "advice")
            for kind, guide in own.items()
            if guide is not None
        }

    def _right(self, slot: Slot, task: Task) -> Reflection:
        """Returns the teacher's reflection on an attempt."""
        self.teacher.reset(seed=task.seed, options=task.options)
        for action in slot.base.actions:
            self.teacher.step(action)
        return reflection.parse(json.dumps(self.teacher.reflection()), slot.base.num_steps)


def configured(model: Path, settings: Sequence[str]) -> RunConfig:
    """The configuration of a probe."""
    given = [f"model={model}", "actor.reflect_temperature=1", *settings]
    return configuration.load(SETTINGS, given)


async def probe(model: Path, log: Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what the guidance of the policy in `model` brings, as the values of a line."""
    config = configured(model, settings)
    tasks = registry.tasks(config.env.name, config.env.options, "eval", TASKS)
    async with own_engine(config, log) as policy:
        run = Probe(policy, config)
        played = await asyncio.gather(*(run.slots(i, task) for i, task in enumerate(tasks)))
        slots = [slot for some in played for slot in some]
        failed = [slot for slot in slots if slot.failed]
        await asyncio.gather(
            *(
                run.retry(slot, tasks[slot.task], run.guidance(place, failed, tasks[slot.task]))
                for place, slot in enumerate(failed)
            )
        )
    return summary(slots)


def summary(slots: Sequence[Slot]) -> dict[str, Any]:
    """What a line keeps of a probe."""
    return {
        "success": sum(not slot.failed for slot in slots) / len(slots),
        "attempts": len(slots),
        "attempt_tokens": _mean([int(slot.base.response_mask.sum()) for slot in slots]),
        "gains": {
            kind: gain(slots, kind) for kind in sorted({k for s in slots for k in s.retries})
        },
        "ways": {way: _way(slots, way) for way in WAYS},
    }


def gain(slots: Sequence[Slot], kind: str) -> dict[str, float]:
    """The guidance gain of a kind, its standard error, and its pairs."""
    groups: dict[int, list[Slot]] = {}
    for slot in slots:
        groups.setdefault(slot.task, []).append(slot)
    gains = []
    for group in groups.values():
        played = [(i, -1, slot.base.reward) for i, slot in enumerate(group)]
        played += [
            (len(group) + i, i, slot.retries[kind])
            for i, slot in enumerate(group)
            if kind in slot.retries
        ]
        gains.append(of_group(played))
    value, error = estimate(gains)
    return {"gain": value, "se": error, "pairs": sum(one.slots for one in gains)}


def _way(slots: Sequence[Slot], way: str) -> dict[str, Any]:
    thoughts = [(slot, slot.thoughts[way]) for slot in slots]
    read = [(slot, thought.parsed) for slot, thought in thoughts if thought.parsed is not None]
    verdicts = [(one.trajectory_outcome == "success") != slot.failed for slot, one in read]
    failed = [slot for slot in slots if slot.failed]
    shown = [
        (s.base.actions[0], s.thoughts[way].text[:400])
        for s in failed[:: len(failed) // SHOWN or 1]
    ]
    return {
        "parsed": len(read) / len(slots),
        "causes": dict(Counter(thought.cause for _, thought in thoughts if thought.cause)),
        "right_verdict": _mean(verdicts),
        "retried_failures": _mean([slot.guide(way) is not None for slot in failed]),
        "tokens": _mean([thought.tokens for _, thought in thoughts]),
        "examples": shown[:SHOWN],
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
