"""What guidance brings on a frozen policy: five kinds of it, and three ways to write reflections.

task ─► SLOTS first attempts ─► each: a reflection per way ─► each failed one: a retry per kind
                                                     d = R(retry) − mean R of the other attempts
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs import registry
from envs.base import Demonstrating
from envs.demonstrations import demonstrating
from lab.real_model.doses import SETTINGS
from launch.evaluation.play import own_engine
from r3l.algorithms.guidance_gain import estimate, of_group
from r3l.errors import ReflectionError
from r3l.records import Role, Task, Trajectory
from r3l.rollout import reflection
from r3l.rollout.attempt import branch, play, start
from r3l.rollout.policy_interface import Policy, SampleParams
from r3l.rollout.prompts import Prompts
from r3l.rollout.reflection import Reflection
from r3l.run import config as configuration
from r3l.run.config import RunConfig

TASKS, SLOTS, AT_ONCE = 72, 4, 32
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
    """A first attempt with its reflections by way, and the rewards of its retries by kind."""

    task: int
    base: Trajectory
    thoughts: dict[str, Thought] = field(default_factory=dict)
    retries: dict[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.base.reward < 1.0

    def guide(self, way: str) -> Reflection | None:
        """The reflection, if it asks for a retry of a failed attempt."""
        thought = self.thoughts[way].parsed
        wanted = self.failed and thought is not None and thought.triggers_retry(self.base.num_steps)
        return thought if wanted else None


class Probe:
    """Plays with a policy that does not change."""

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        self.policy, self.config = policy, config
        self.env: Demonstrating = demonstrating(config.env.name, **config.env.options)
        self.prompts, self.free = Prompts(self.env.spec.prompts), asyncio.Semaphore(AT_ONCE)

    async def slot(self, number: int, task: Task) -> Slot:
        """Plays a first attempt and asks for its reflections."""
        async with self.free:
            env = self._world()
            attempt = await start(task, self.policy.chat, env)
            await play(attempt, self.policy, env, lambda step: self._budget())
            slot = Slot(number, attempt.trajectory("base", 0))
            for way in WAYS:
                slot.thoughts[way] = await self._reflect(slot.base, way)
            return slot

    async def retry(self, slot: Slot, task: Task, kind: str, guidance: str) -> None:
        """Plays a retry from the first step under `guidance`."""
        async with self.free:
            env = self._world()
            attempt = await branch(slot.base, 0, task, self.policy.chat, env, guidance)
            await play(attempt, self.policy, env, lambda step: self._budget())
            slot.retries[kind] = attempt.reward

    def guidance(self, place: int, failed: Sequence[Slot], task: Task) -> dict[str, str]:
        """Returns the text that each retry of the failed slot at `place` is shown, by kind."""
        slot, prompts = failed[place], self.prompts
        own = {f"own {way}": slot.guide(way) for way in WAYS}
        around = (*failed[place + 1 :], *failed[:place])
        others = (other.guide("schema") for other in around if other.task != slot.task)
        own["another"] = next((guide for guide in others if guide is not None), None)
        own |= {"empty": EMPTY, "right": self._right(slot, task)}
        return {"plain": ""} | {
            kind: prompts.guidance(guide) for kind, guide in own.items() if guide is not None
        }

    def _right(self, slot: Slot, task: Task) -> Reflection:
        """The teacher's reflection on an attempt."""
        self.env.reset(seed=task.seed, options=task.options)
        for action in slot.base.actions:
            self.env.step(action)
        return reflection.parse(json.dumps(self.env.reflection()), slot.base.num_steps)

    async def _reflect(self, base: Trajectory, way: str) -> Thought:
        chat, first = self.policy.chat, WAYS[way]
        asked = (*chat.open(*self.prompts.question("reflect", base)), *chat.prompt_ids)
        schema = None
        if first is not None:
            schema = reflection.json_schema(base.num_steps, outcome_first=first)
        budget = self.config.actor.max_reflection_tokens
        sample = await self.policy.sample(asked, SampleParams(budget, json_schema=schema))
        thought = Thought(chat.text(sample.token_ids), len(sample.token_ids))
        try:
            cut = sample.finish_reason != "stop"
            thought.parsed = reflection.parse(thought.text, base.num_steps, truncated=cut)
        except ReflectionError as error:
            thought.cause = error.cause
        return thought

    def _world(self) -> Any:
        return registry.make(self.config.env.name, **self.config.env.options)

    def _budget(self) -> SampleParams:
        return SampleParams(self.env.spec.max_response_tokens)


def configured(model: Path, settings: Sequence[str]) -> RunConfig:
    """The configuration of a probe."""
    return configuration.load(SETTINGS, [f"model={model}", *settings])


async def probe(model: Path, log: Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what the guidance of the policy in `model` brings, as the values of a line."""
    config = configured(model, settings)
    tasks = registry.tasks(config.env.name, config.env.options, "eval", TASKS)
    async with own_engine(config, log) as policy:
        run = Probe(policy, config)
        every = range(TASKS * SLOTS)
        slots = await asyncio.gather(*(run.slot(i // SLOTS, tasks[i // SLOTS]) for i in every))
        failed = [slot for slot in slots if slot.failed]
        await asyncio.gather(
            *(
                run.retry(slot, tasks[slot.task], kind, text)
                for place, slot in enumerate(failed)
                for kind, text in run.guidance(place, failed, tasks[slot.task]).items()
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
        played: list[tuple[Role, int, float]] = [
            ("base", i, slot.base.reward) for i, slot in enumerate(group)
        ]
        played += [
            ("distilled", i, slot.retries[kind])
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
