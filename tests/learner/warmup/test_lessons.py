"""Lessons: what is learned from a demonstration, a reflection and a retry."""

import itertools
import json
import random

import numpy as np

from envs.base import SeededTasks
from learner.warmup import lessons as demonstrations
from r3l.rollout import reflection
from tests.learner.warmup.conftest import SKILL


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


def test_reflections_of_lessons_parse(chat, lessons):
    for lesson in lessons:
        if lesson.kind == "reflect":
            text = chat.text(lesson.token_ids[lesson.response_mask].tolist())
            assert list(json.loads(text)) == list(reflection.FIELDS)
            assert reflection.parse(text, 7)
