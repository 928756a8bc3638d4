"""Makes warm-up lessons: demonstrations, reflections and guided retries as token sequences.

    task ─► demonstrator plays ─────────────────────────────► lesson "play"
    task ─► a worse demonstrator plays ─► teacher reflects ─► lesson "reflect"
                                             └► branch at the pivot, guided ─► lesson "retry"

The demonstrator replaces the policy in a rollout (`r3l.rollout.attempt`), so a lesson has exactly
the tokens that the policy will see. This works with any environment that has demonstrations
(envs.demonstrations), and with any tokenizer that has a chat template.

The user's own conversations are lessons too (learner.warmup.conversations). The assistant's replies
are learned, with their tool calls and reasoning as the chat template writes them.
"""

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envs.base import Demonstrating, Skill
from envs.demonstrations import demonstrating
from learner.warmup.conversations import Conversation, read_row
from r3l.errors import UserError
from r3l.files.hub_data_set import is_name
from r3l.files.hub_data_set import rows as hub_rows
from r3l.files.user_file import numbered_lines
from r3l.records import Bool, Int32, Task, Trajectory
from r3l.rollout import reflection
from r3l.rollout.agent_chat import AgentChat, AgentMessage, add_tools
from r3l.rollout.attempt import Attempt, Tokens, branch, play, start
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.rollout.prompts import GuidanceText, Prompts
from r3l.views.session_trace import demonstration, is_trace, read_sessions


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
    `blunders`: the worse demonstrator's probability of a mistake at a step. `guidance_text`: what a
    retry is shown, as in a run (algorithm.guidance_text)."""

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
        tokens.add_read(self.chat.open(*self.prompts.question("reflect", base)))
        tokens.add_read(self.chat.prompt_ids)
        tokens.add_response(reply(self.chat, thought))
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
    """Yields texts that together contain all words that a tokenizer for `env` should know."""
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


def message_lessons(file: Path, chat: ChatFormat, context_length: int) -> list[Lesson]:
    """Makes a lesson from each line of a file, each row of a data set of the hub, or each session
    of a file or folder of traces. Raises UserError if it is empty, a line is malformed or a
    conversation exceeds `context_length`."""
    lessons = []
    for place, line in _rows(file):
        try:
            whole = json.loads(line) if isinstance(line, str) else line
            row = read_row(whole, chat.special.in_reply)
            lesson = Lesson("data", *_arrays(_of_row(row, chat)))
        except (ValueError, RecursionError, UserError) as error:
            raise UserError(f"--data {file}: {place}: {error!s:.300}") from None
        if (length := len(lesson.token_ids)) > context_length:
            raise UserError(
                f"--data {file}: {place}: has {length} tokens, more than the model's context of "
                f"{context_length}; shorten or remove it"
            )
        lessons.append(lesson)
    if not lessons:
        raise UserError(f"--data {file}: has no conversations")
    return lessons


def _rows(file: Path) -> Iterator[tuple[str, Any]]:
    """Yields each line, row or session with its place. A line is text, the others are objects."""
    if is_name(str(file)):
        yield from ((f"row {n}", row) for n, row in enumerate(hub_rows(str(file)), 1))
    elif is_trace(file):
        for session in read_sessions(file):
            if (row := demonstration(session)) is not None:
                yield str(session.where), row
    else:
        lines = numbered_lines(file, f"--data {file}", "give a file of JSON lines")
        yield from ((f"line {number}", line) for number, line in lines)


def shuffled(lessons: Sequence[Lesson], rng: random.Random) -> Iterator[Lesson]:
    """Yields all lessons in a random order, again and again, each time in a new order."""
    while lessons:
        yield from rng.sample(lessons, len(lessons))


def _of_row(row: Conversation, chat: ChatFormat) -> Tokens:
    return _plain(row, chat) if row.is_plain else _as_written(row, _with_tools(row, chat))


def _plain(row: Conversation, chat: ChatFormat) -> Tokens:
    """Encodes a conversation of texts turn by turn, as in an attempt."""
    texts = [str(message.fields["content"]) for message in row.messages]
    system = texts.pop(0) if row.messages[0].role == "system" else ""
    learned = [message.learned for message in row.messages if message.role == "assistant"]
    tokens = Tokens()
    for place in range(0, len(texts), 2):
        asked, answer = texts[place], texts[place + 1]
        tokens.add_read(chat.turn("user", asked) if place else chat.open(system, asked))
        tokens.add_read(chat.prompt_ids)
        _add(tokens, reply(chat, answer), learned[place // 2])
    return tokens


def _as_written(row: Conversation, chat: ChatFormat) -> Tokens:
    """Encodes a conversation with tools, calls or reasoning. Encodes each reply as the template
    writes the last message. Raises ValueError if the template leaves out something of the row."""
    messages = [message.fields for message in row.messages]
    if messages[0]["role"] == "system":
        *before_it, first = chat.opening(messages[0]["content"], messages[1]["content"])
        messages[:2] = [*before_it, {**messages[1], **first}]
    skipped = len(row.messages) - len(messages)  # merged into the first user's message
    tokens, before = Tokens(), ""
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        invited = chat.render(messages[:place], row.tools, prompt=True)
        if invited.startswith(before):
            tokens.add_read(chat.encode(invited[len(before) :]))
        else:  # the template changes earlier replies, and an attempt keeps them as they were
            tokens.add_read(_after_reply(chat, messages[:place]))
        text = _reply_text(chat, invited, messages[: place + 1], row)
        _add(tokens, reply(chat, text), row.messages[place + skipped].learned)
        before = invited + text + chat.end
    return tokens


def _after_reply(chat: ChatFormat, messages: Sequence[AgentMessage]) -> tuple[int, ...]:
    """Encodes the messages since the last reply, and the invitation, as in an attempt."""
    last = max(n for n, message in enumerate(messages) if message["role"] == "assistant")
    calls = [(c["id"], c["function"]["name"]) for c in messages[last].get("tool_calls", ())]
    return AgentChat(chat).following(calls, messages[last + 1 :])


def _reply_text(
    chat: ChatFormat, invited: str, messages: Sequence[AgentMessage], row: Conversation
) -> str:
    """Returns a reply's text as the template writes it after `invited`, without the end token."""
    whole = chat.render(messages, row.tools)
    text, end, _ = whole.removeprefix(invited).rpartition(chat.end)
    if not whole.startswith(invited) or not end or not text.strip():
        raise ValueError(
            f"messages[{len(messages) - 1}]: the chat template does not write this reply after its "
            "own prompt for a reply; write the reply as one text, or remove the row"
        )
    shown = {"reasoning_content": [messages[-1].get("reasoning_content", "")]}
    shown["tool_calls"] = [c["function"]["name"] for c in messages[-1].get("tool_calls", ())]
    for field, texts in shown.items():
        if not all(each.strip() in text for each in texts):
            raise ValueError(f"{field}: the chat template does not show it; remove it, or the row")
    return text


def _with_tools(row: Conversation, chat: ChatFormat) -> ChatFormat:
    """Returns a chat format that shows the row's tools, as agents have it (add_tools)."""
    if not row.tools and not any("tool_calls" in message.fields for message in row.messages):
        return chat
    shown = copy(chat)
    shown.tokenizer = copy(chat.tokenizer)
    add_tools(shown)
    names = [tool["function"]["name"] for tool in row.tools]
    asked = shown.render([message.fields for message in row.messages[:2]], row.tools)
    if missing := next((name for name in names if name not in asked), None):
        raise ValueError(f"tools: the chat template does not show {missing}; remove the tools")
    return shown


def _add(tokens: Tokens, answer: Sample, learned: bool) -> None:
    if learned:
        tokens.add_response(answer)
    else:
        tokens.add_read(answer.token_ids)


def _arrays(tokens: Tokens) -> tuple[Int32, Bool]:
    """Returns token ids and the mask of sampled tokens."""
    return np.array(tokens.ids, np.int32), np.array(tokens.mask, np.bool_)
