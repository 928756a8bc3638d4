"""Lessons: what is learned from a demonstration, a reflection and a retry."""

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envs.base import SeededTasks
from learner.warmup import lessons as demonstrations
from learner.warmup.lessons import message_lessons, shuffled
from r3l.errors import UserError
from r3l.rollout import reflection
from r3l.rollout.chat import ChatFormat
from tests.learner.warmup.conftest import SKILL

ASK, SAY = {"role": "user", "content": "go?"}, {"role": "assistant", "content": "open door"}
SYSTEM = {"role": "system", "content": "be brief"}


def test_a_lesson_is_the_conversation_as_the_template_writes_it(chat, lessons):
    (play,) = itertools.islice((x for x in lessons if x.kind == "play"), 1)
    world = demonstrations.demonstrating("workshop")
    (task,) = SeededTasks("workshop").tasks("warmup", 1)
    turns = [{"role": "system", "content": world.spec.system_prompt}]
    observation, _ = world.reset(seed=task.seed)
    rng = random.Random(task.seed)
    ended = False
    while not ended:
        action = world.demonstrate(SKILL, rng)
        turns += [
            {"role": "user", "content": observation},
            {"role": "assistant", "content": action},
        ]
        observation, _, terminated, truncated, _ = world.step(action)
        ended = terminated or truncated
    text = chat.tokenizer.apply_chat_template(turns, tokenize=False)
    assert chat.tokenizer.decode(play.token_ids) == text.rstrip("\n")
    said = "".join(f"{turn['content']}<|im_end|>" for turn in turns[2::2])
    assert chat.tokenizer.decode(play.token_ids[play.response_mask]) == said


def test_a_lesson_of_a_retry_teaches_only_guided_replies(chat, lessons):
    retries = [lesson for lesson in lessons if lesson.kind == "retry"]
    assert len(retries) > 10
    late = 0
    for lesson in retries:
        first = int(np.argmax(lesson.response_mask))
        before = chat.tokenizer.decode(lesson.token_ids[:first])
        assert before.count("advice: ") == 1
        late += "<|im_start|>system\nadvice: " in before
        assert "advice" not in chat.tokenizer.decode(lesson.token_ids[first:])
    assert late > 3


def test_retries_are_shown_the_report_or_the_advice(chat):
    world, (task,) = (
        demonstrations.demonstrating("workshop"),
        SeededTasks("workshop").tasks("warmup", 1),
    )
    told = {}
    for text in ("report", "advice"):
        teacher = demonstrations.Teacher(
            world, chat, replace(SKILL, mistakes=1.0), guidance_text=text
        )
        (retry,) = [lesson for lesson in teacher.lessons(task) if lesson.kind == "retry"]
        told[text] = chat.tokenizer.decode(retry.token_ids)
    assert 'advice: {"trajectory_summary"' in told["report"]
    assert "advice: remember" in told["advice"] and "trajectory_summary" not in told["advice"]


def test_reflections_of_lessons_parse(chat, lessons):
    for lesson in lessons:
        if lesson.kind == "reflect":
            text = chat.text(lesson.token_ids[lesson.response_mask].tolist())
            assert list(json.loads(text)) == list(reflection.FIELDS)
            assert reflection.parse(text, 7)


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


def test_session_traces_are_learned_unless_they_earned_nothing(
    tmp_path: Path, chat: ChatFormat
) -> None:
    def session(reward: float, *messages: dict[str, str]) -> list[dict[str, object]]:
        header = {"type": "session", "harness": "x", "id": "s", "reward": reward}
        return [header, *({"type": "message", "message": each} for each in messages)]

    good, bad = session(1, SYSTEM, ASK, SAY, ASK), session(0, ASK, {**SAY, "content": "no"})
    file = write(tmp_path / "traces.jsonl", *good, *bad)
    (lesson,) = message_lessons(file, chat, 64)
    assert chat.tokenizer.decode(lesson.token_ids[lesson.response_mask]) == f"open door{chat.end}"
    with pytest.raises(UserError, match=r"traces\.jsonl line 1: has \d+ tokens, more than"):
        message_lessons(file, chat, 8)


def test_the_rows_of_a_data_set_are_learned(
    tmp_path: Path, chat: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"messages": [ASK, SAY]}, {"messages": [SAY]}]
    monkeypatch.setattr(demonstrations, "hub_rows", lambda name: rows[: 1 + (name == "a/b@bad")])
    (lesson,) = message_lessons(Path("a/b@train"), chat, 64)
    assert chat.tokenizer.decode(lesson.token_ids[lesson.response_mask]) == f"open door{chat.end}"
    with pytest.raises(UserError, match="--data a/b@bad: row 2: messages"):
        message_lessons(Path("a/b@bad"), chat, 64)


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
