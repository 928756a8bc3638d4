"""Makes warm-up lessons from the user's own conversations, a JSON-lines file.

    {"messages": [{"role": "user", "content": "7+5?"}, {"role": "assistant", "content": "12"}]}

After a system message, if there is one, user and assistant take turns; the assistant's replies are
learned.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from learner.warmup.lessons import Lesson, reply
from r3l.errors import UserError
from r3l.files.user_file import numbered_lines
from r3l.rollout.attempt import Tokens
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import Sample


class _Message(msgspec.Struct):
    role: Literal["system", "user", "assistant"]
    content: str


class _Conversation(msgspec.Struct):
    messages: Annotated[list[_Message], msgspec.Meta(min_length=2)]


def message_lessons(file: Path, chat: ChatFormat, context_length: int) -> list[Lesson]:
    """Read a lesson from every line. Raises UserError that names the first line that is not a
    conversation, or is longer than `context_length` tokens."""
    lessons = []
    for number, line in numbered_lines(file, f"--data {file}", "give a file of JSON lines"):
        try:
            lesson = _lesson(msgspec.json.decode(line.encode(), type=_Conversation), chat)
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
    """Yield lessons endlessly, in a new order in every round."""
    while lessons:
        yield from rng.sample(lessons, len(lessons))


def _lesson(conversation: _Conversation, chat: ChatFormat) -> Lesson:
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
        ids = reply(chat, answer)
        tokens.sampled(Sample(ids, (0.0,) * len(ids), 0, 0, "stop"))
    return Lesson("data", *tokens.arrays())
