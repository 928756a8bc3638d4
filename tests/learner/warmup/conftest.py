"""The shipped chat format, and lessons of both built-in worlds."""

import pytest
import torch
from transformers import AutoTokenizer

from envs.base import SeededTasks, Skill
from learner.warmup import lessons as demonstrations
from r3l.models.model_path import builtin_policy
from r3l.rollout.chat import ChatFormat

SKILL = Skill(withheld=4, waste=0.03)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def chat():
    return ChatFormat(AutoTokenizer.from_pretrained(builtin_policy()))


@pytest.fixture(scope="module")
def lessons(chat):
    """All lessons of 40 tasks, with the name of their world."""
    found = []
    for name in ("workshop", "keys"):
        teacher = demonstrations.Teacher(demonstrations.demonstrating(name), chat, SKILL)
        for task in SeededTasks(name).tasks("warmup", 20):
            found += teacher.lessons(task)
    return found
