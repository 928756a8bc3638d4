"""Makes warm-up lessons: demonstrations, reflections and guided retries as token sequences.

    task ─► demonstrator plays ─────────────────────────────► lesson "play"
    task ─► a worse demonstrator plays ─► teacher reflects ─► lesson "reflect"
                                             └► branch at the pivot, guided ─► lesson "retry"

The demonstrator replaces the policy in a rollout (`r3l.rollout.attempt`), so a lesson has exactly
the tokens that the policy will see. This works with any environment that has demonstrations
(envs.demonstrations), and with any tokenizer that has a chat template.

The user's own conversations are lessons too. User and assistant take turns, after an optional
system message. The assistant's replies are learned:

    {"messages": [{"role": "user", "content": "7+5?"}, {"role": "assistant", "content": "12"}]}
"""

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from envs.base import Demonstrating, Skill
from envs.demonstrations import demonstrating
from r3l.errors import UserError
from r3l.files.user_file import numbered_lines
from r3l.records import Bool, Int32, Task, Trajectory
from r3l.rollout import reflection
from r3l.rollout.attempt import Attempt, Tokens, branch, play, start
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.rollout.prompts import GuidanceText, Prompts


@dataclass(frozen=True, repr=False)  # asyncio.run takes the repr of results
class Lesson:
    """A token sequence of length L. The tokens that `response_mask` selects are learned."""

    kind: Literal["play", "reflect", "retry", "copy", "data"]
    token_ids: Int32
    response_mask: Bool


@dataclass
class Demonstrator:
    """A policy (r3l.rollout.policy_interface) that replies with an environment's demonstrations."""

    env: Demonstrating
    chat: ChatFormat
    skill: Skill
    rng: random.Random
    advice: str = ""
    context_length: int = 1 << 20

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Returns the demonstrator's next action, which does not depend on `token_ids`."""
        return reply(self.chat, self.env.demonstrate(self.skill, self.rng, self.advice))


class Teacher:
    """Makes the lessons of one environment. A demonstrator plays the attempts. About half of the
    reflections are on attempts of a worse demonstrator. `skill`: the usual demonstrator's skill.
    `blunders`: the worse demonstrator's probability of a mistake at a step. `guidance_text`: what
    retries are shown, as in a run (algorithm.guidance_text)."""

    def __init__(
        self,
        env: Demonstrating,
        chat: ChatFormat,
        skill: Skill,
        *,
        blunders: float = 0.15,
        guidance_text: GuidanceText = "report",
    ) -> None:
        self.env, self.chat, self.skill, self.blunders = env, chat, skill, blunders
        self.prompts, self.guidance_text = Prompts(env.spec.prompts), guidance_text

    def lessons(self, task: Task) -> list[Lesson]:
        """Makes a task's lessons: a demonstration, and a reflection on another attempt. If the
        reflection triggers a retry, the retry is a lesson too."""
        return asyncio.run(self._lessons(task))

    async def _lessons(self, task: Task) -> list[Lesson]:
        rng = random.Random(task.seed)
        shown = await self._play(await start(task, self.chat, self.env), self.skill, rng)
        erring = replace(self.skill, mistakes=self.blunders, waste=self.blunders / 2)
        attempt = await self._play(
            await start(task, self.chat, self.env), rng.choice([self.skill, erring]), rng
        )
        base = attempt.trajectory(0)
        # vLLM's constrained decoding writes JSON without spaces between its tokens.
        thought = json.dumps(self.env.reflection(), separators=(",", ":"))
        lessons = [Lesson("play", *shown.trajectory(0).as_shown()), self._reflect(base, thought)]
        parsed = reflection.parse(thought, base.num_steps)
        if parsed.triggers_retry(base.num_steps):
            lessons.append(await self._retry(task, base, attempt, parsed, rng))
        return lessons

    def _reflect(self, base: Trajectory, thought: str) -> Lesson:
        tokens = Tokens()
        tokens.given(self.chat.open(*self.prompts.question("reflect", base)))
        tokens.given(self.chat.prompt_ids)
        tokens.sampled(reply(self.chat, thought))
        return Lesson("reflect", *_arrays(tokens))

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
        guidance = self.prompts.guidance(parsed, self.guidance_text)
        attempt = await branch(base, pivot, task, self.chat, self.env, guidance, played)
        await self._play(attempt, self.skill, rng, parsed.improvement_suggestion or "")
        return Lesson("retry", *attempt.trajectory(1, of=0, pivot=pivot).as_shown())

    async def _play(
        self, attempt: Attempt, skill: Skill, rng: random.Random, advice: str = ""
    ) -> Attempt:
        policy = Demonstrator(self.env, self.chat, skill, rng, advice)
        budget = SampleParams(self.env.spec.max_response_tokens)
        await play(attempt, policy, self.env, lambda step: budget)
        return attempt


def teachers(
    env: str,
    chat: ChatFormat,
    skill: Skill,
    options: Mapping[str, Any],
    guidance_text: GuidanceText = "report",
) -> list[Teacher]:
    """Makes a teacher for each practice variant of a registered environment.

    Raises UserError if the environment has no demonstrations, or refuses `options`.
    """
    world = demonstrating(env, **options)
    variants = world.practice() if hasattr(world, "practice") else [{}]
    worlds = [demonstrating(env, **{**options, **other}) for other in variants]
    return [Teacher(each, chat, skill, guidance_text=guidance_text) for each in worlds]


def texts(env: Demonstrating) -> Iterable[str]:
    """Yields texts that together have all words that a tokenizer for `env` should know."""
    rng, skill = random.Random(0), Skill(mistakes=0.3, waste=0.2)
    written = [*env.vocabulary()]
    for prompts in (Prompts(env.spec.prompts), Prompts()):
        taught = {**prompts.texts, "in_context": ""}  # no lesson shows what R³ asks
        written += taught.values()
    yield from (text.replace("{report}", "") for text in written)  # a placeholder, never read
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
    """Yields lessons that contain a random token sequence twice; the second copy is learned."""
    while True:
        copied = rng.choices(words, k=rng.randint(6, 24))
        mask = [False] * len(copied) + [True] * len(copied)
        yield Lesson("copy", np.array(copied * 2, np.int32), np.array(mask, np.bool_))


def reply(chat: ChatFormat, text: str) -> Sample:
    """Tokenizes a complete reply and adds the chat's end token."""
    ids = (*chat.tokenizer.encode(text, add_special_tokens=False), chat.end_id)
    return Sample(ids, (0.0,) * len(ids), 0, 0, "stop")


class _Message(msgspec.Struct):
    role: Literal["system", "user", "assistant"]
    content: str


class _Conversation(msgspec.Struct):
    messages: Annotated[list[_Message], msgspec.Meta(min_length=2)]


def message_lessons(file: Path, chat: ChatFormat, context_length: int) -> list[Lesson]:
    """Makes a lesson from each line of a file. Raises UserError if the file is empty, a line is
    malformed or a conversation exceeds `context_length`."""
    lessons = []
    for number, line in numbered_lines(file, f"--data {file}", "give a file of JSON lines"):
        try:
            lesson = _of_conversation(msgspec.json.decode(line.encode(), type=_Conversation), chat)
        except (ValueError, UnicodeEncodeError) as error:  # msgspec's errors are ValueErrors
            raise UserError(f"--data {file}: line {number}: {error!s:.200}") from None
        if (length := len(lesson.token_ids)) > context_length:
            raise UserError(
                f"--data {file}: line {number}: has {length} tokens, more than the model's context "
                f"of {context_length}; shorten or remove it"
            )
        lessons.append(lesson)
    if not lessons:
        raise UserError(f"--data {file}: has no conversations")
    return lessons


def shuffled(lessons: Sequence[Lesson], rng: random.Random) -> Iterator[Lesson]:
    """Yields all lessons in a random order, again and again, each time in a new order."""
    while lessons:
        yield from rng.sample(lessons, len(lessons))


def _of_conversation(conversation: _Conversation, chat: ChatFormat) -> Lesson:
    messages = conversation.messages
    system = messages[0].content if messages[0].role == "system" else ""
    turns = messages[1:] if messages[0].role == "system" else messages
    roles = [message.role for message in turns]
    if not roles or roles != ["user", "assistant"] * (len(roles) // 2):
        raise ValueError("user and assistant must take turns, and the assistant must be last")
    tokens = Tokens()
    for place in range(0, len(turns), 2):
        asked, answer = turns[place].content, turns[place + 1].content
        tokens.given(chat.turn("user", asked) if place else chat.open(system, asked))
        tokens.given(chat.prompt_ids)
        tokens.sampled(reply(chat, answer))
    return Lesson("data", *_arrays(tokens))


def _arrays(tokens: Tokens) -> tuple[Int32, Bool]:
    """Returns token ids and the mask of sampled tokens."""
    return np.array(tokens.ids, np.int32), np.array(tokens.mask, np.bool_)
