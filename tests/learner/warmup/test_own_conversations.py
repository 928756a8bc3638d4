"""Lessons of the user's own conversations."""

import itertools
import json
import random
from pathlib import Path

import pytest

from learner.warmup.own_conversations import message_lessons, shuffled
from r3l.errors import UserError
from r3l.rollout.chat import ChatFormat

ASK, SAY = {"role": "user", "content": "go?"}, {"role": "assistant", "content": "open door"}
SYSTEM = {"role": "system", "content": "be brief"}


def write(file: Path, *rows: object) -> Path:
    file.write_text("\ufeff" + "\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    return file


def test_the_replies_of_a_conversation_are_learned_as_the_policy_writes_them(
    tmp_path: Path, chat: ChatFormat
) -> None:
    odd = {"role": "assistant", "content": "two\u2028lines"}
    file = write(tmp_path / "own.jsonl", {"messages": [SYSTEM, ASK, SAY, ASK, odd]})
    (lesson,) = message_lessons(file, chat, 4096)
    text = chat.tokenizer.decode(lesson.token_ids)
    messages = [SYSTEM, ASK, SAY, ASK, odd]
    assert text == chat.render(messages).removesuffix("\n")
    learned = chat.tokenizer.decode(lesson.token_ids[lesson.response_mask])
    assert learned == f"open door{chat.end}two\u2028lines{chat.end}"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"text": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [ASK, {"role": "tool", "content": "x"}]}, "role"),
        ({"messages": [ASK, ASK, SAY]}, "take turns"),
        ({"messages": [SAY, ASK]}, "take turns"),
        ({"messages": [ASK, {"role": "assistant", "content": [1]}]}, "content"),
        ({"messages": [ASK, SAY] * 40}, "context of 64"),
        ([1], "object"),
    ],
)
def test_a_line_that_is_no_conversation_is_refused_by_its_number(
    tmp_path: Path, chat: ChatFormat, row: object, why: str
) -> None:
    file = write(tmp_path / "own.jsonl", {"messages": [ASK, SAY]}, row)
    with pytest.raises(UserError, match=f"line 2: .*{why}") as caught:
        message_lessons(file, chat, 64)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_or_empty_is_refused(tmp_path: Path, chat: ChatFormat) -> None:
    with pytest.raises(UserError, match="No such file"):
        message_lessons(tmp_path / "none", chat, 64)
    with pytest.raises(UserError, match="no conversations"):
        message_lessons(write(tmp_path / "own.jsonl"), chat, 64)


def test_every_conversation_comes_before_any_comes_again(tmp_path: Path, chat: ChatFormat) -> None:
    rows = [{"messages": [ASK, {**SAY, "content": str(n)}]} for n in range(5)]
    lessons = message_lessons(write(tmp_path / "own.jsonl", *rows), chat, 64)
    taken = list(itertools.islice(shuffled(lessons, random.Random(0)), 10))
    assert {id(x) for x in taken[:5]} == {id(x) for x in taken[5:]} == {id(x) for x in lessons}
    assert list(shuffled([], random.Random(0))) == []
