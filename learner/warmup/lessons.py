"""Makes warm-up lessons: demonstrations, reflections and guided retries as token sequences.

    task ─► demonstrator plays ─────────────────────────────► lesson "play"
    task ─► a worse demonstrator plays ─► teacher reflects ─► lesson "reflect"
                                             └► branch at the pivot, guided ─► lesson "retry"

The demonstrator replaces the policy in a rollout (`r3l.rollout.attempt`), so a lesson has exactly
the tokens that the policy will see. This works with any environment that has demonstrations
(envs.demonstrations), and with any tokenizer that has a chat template.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from envs.base import Demonstrating, Skill
from envs.demonstrations import demonstrating
from r3l.records import Bool, Int32, Task, Trajectory
from r3l.rollout import reflection
from r3l.rollout.attempt import Attempt, Tokens, branch, play, start
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.rollout.prompts import Prompts


@dataclass(frozen=True, repr=False)  # asyncio.run takes the repr of results
class Lesson:
    """A token sequence of length L. The tokens that `response_mask` selects are learned."""

    kind: Literal["play", "reflect", "retry", "copy", "data"]
    token_ids: Int32
    response_mask: Bool


@dataclass
class Demonstrator:
    """Replies with the environment's demonstrations, as a policy (r3l.rollout.policy_interface)."""

    env: Demonstrating
    chat: ChatFormat
    skill: Skill
    rng: random.Random
    advice: str = ""
    context_length: int = 1 << 20

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Return the demonstrator's next action, which depends only on the environment's state."""
        ids = reply(self.chat, self.env.demonstrate(self.skill, self.rng, self.advice))
        return Sample(ids, (0.0,) * len(ids), 0, 0, "stop")


class Teacher:
    """Makes the lessons of one environment. `skill` is what the demonstrator knows. In half of the
    attempts for reflections it also makes `blunders` mistakes per step, so that every rule is
    broken."""

    def __init__(
        self, env: Demonstrating, chat: ChatFormat, skill: Skill, *, blunders: float = 0.15
    ) -> None:
        self.env, self.chat, self.skill, self.blunders = env, chat, skill, blunders
        self.prompts = Prompts(env.spec.prompts)

    def lessons(self, task: Task) -> list[Lesson]:
        """Make a demonstration, a reflection and, if the attempt can be improved, a retry."""
        return asyncio.run(self._lessons(task))

    async def _lessons(self, task: Task) -> list[Lesson]:
        rng = random.Random(task.seed)
        shown = await self._play(await start(task, self.chat, self.env), self.skill, rng)
        erring = replace(self.skill, mistakes=self.blunders, waste=self.blunders / 2)
        attempt = await self._play(
            await start(task, self.chat, self.env), rng.choice([self.skill, erring]), rng
        )
        base = attempt.trajectory("base", 0)
        # vLLM's constrained decoding writes JSON without spaces between its tokens.
        thought = json.dumps(self.env.reflection(), separators=(",", ":"))
        lessons = [_lesson("play", shown.shown), self._reflect(base, thought)]
        parsed = reflection.parse(thought, base.num_steps)
        if parsed.triggers_retry(base.num_steps):
            lessons.append(await self._retry(task, base, attempt, parsed, rng))
        return lessons

    def _reflect(self, base: Trajectory, thought: str) -> Lesson:
        tokens = Tokens()
        tokens.given(self.chat.open(*self.prompts.question("reflect", base)))
        tokens.given(self.chat.prompt_ids)
        ids = reply(self.chat, thought)
        tokens.sampled(Sample(ids, (0.0,) * len(ids), 0, 0, "stop"))
        return _lesson("reflect", tokens)

    async def _retry(
        self,
        task: Task,
        base: Trajectory,
        played: Attempt,
        parsed: reflection.Reflection,
        rng: random.Random,
    ) -> Lesson:
        # Sometimes from the start: guidance is then part of the system prompt.
        pivot = 0 if rng.random() < 0.1 else parsed.retry_from_step or 0
        guidance = self.prompts.guidance(parsed)
        attempt = await branch(base, pivot, task, self.chat, self.env, guidance, played)
        guided_from = len(attempt.shown.ids)
        await self._play(attempt, self.skill, rng, parsed.improvement_suggestion or "")
        attempt.shown.mask[:guided_from] = [False] * guided_from
        return _lesson("retry", attempt.shown)

    async def _play(
        self, attempt: Attempt, skill: Skill, rng: random.Random, advice: str = ""
    ) -> Attempt:
        policy = Demonstrator(self.env, self.chat, skill, rng, advice)
        budget = SampleParams(self.env.spec.max_response_tokens)
        await play(attempt, policy, self.env, lambda step: budget)
        return attempt


def teachers(env: str, chat: ChatFormat, skill: Skill, options: Mapping[str, Any]) -> list[Teacher]:
    """Make a teacher for each practice variant of a registered environment.

    Raises UserError if the environment has no demonstrations, or refuses `options`.
    """
    world = demonstrating(env, **options)
    variants = world.practice() if hasattr(world, "practice") else [{}]
    return [Teacher(demonstrating(env, **{**options, **other}), chat, skill) for other in variants]


def texts(env: Demonstrating) -> Iterable[str]:
    """Yield texts whose words should be tokens of a tokenizer for `env`."""
    rng, skill = random.Random(0), Skill(mistakes=0.3, waste=0.2)
    yield from env.vocabulary()
    for prompts in (Prompts(env.spec.prompts), Prompts()):
        yield from prompts.texts.values()
    yield "step sees does end"
    for seed in range(20):
        yield env.reset(seed=seed)[0]
        ended = False
        while not ended:
            observation, _, terminated, truncated, _ = env.step(env.demonstrate(skill, rng))
            ended = terminated or truncated
            yield observation
        yield env.feedback()
        yield json.dumps(env.reflection())


def copies(words: Sequence[int], rng: random.Random) -> Iterator[Lesson]:
    """Yield lessons that repeat a random token sequence; the second copy is learned."""
    while True:
        copied = rng.choices(words, k=rng.randint(6, 24))
        mask = [False] * len(copied) + [True] * len(copied)
        yield Lesson("copy", np.array(copied * 2, np.int32), np.array(mask, np.bool_))


def reply(chat: ChatFormat, text: str) -> tuple[int, ...]:
    """Tokenize a complete reply, with the end token that the policy would sample."""
    return (*chat.tokenizer.encode(text, add_special_tokens=False), chat.end_id)


def _lesson(kind: Literal["play", "reflect", "retry"], tokens: Tokens) -> Lesson:
    return Lesson(kind, *tokens.arrays())
