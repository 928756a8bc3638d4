"""The supervised warm start: teaches a policy to read a world, to reflect and to follow guidance.

    Teacher ─► lessons ─► batches of similar length ─► Trainer.step ─► Hugging Face folder

The demonstrator does not teach some rules of the world, so that something is left for reward to
teach. A lesson is trained on like an auxiliary sample, by the same trainer as in a run.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from envs.builtin.policy import BUILTIN_WORLDS
from envs.demonstrations import demonstrating, warmup_tasks
from learner.step.batch import Row
from learner.warmup import lessons, tiny_policy
from learner.warmup.lessons import Lesson
from learner.warmup.recipe import RECORD, Recipe
from r3l.errors import UserError
from r3l.model_folder import check_model_folder, read_tokenizer
from r3l.records import Bool, Int32, Task
from r3l.rollout.chat import ChatFormat

if TYPE_CHECKING:
    from learner.step.trainer import Trainer

TASK_POOL = 64
"""The number of tasks that are requested at a time."""
PROGRESS_S = 5.0
"""Seconds between two progress lines."""
POOL = 256
"""The number of lessons that are sorted by length together, so that batches need little padding."""


def warmup(recipe: Recipe, out: Path) -> None:
    """Warm up a policy and save it in `out`.

    Raises UserError if an environment has no lessons or refuses an option.
    """
    with tempfile.TemporaryDirectory(prefix="r3l-warmup-") as made_here:
        start = recipe.model or _tiny_model(recipe, Path(made_here))
        check_model_folder(start, f"--model {start}")
        tokenizer = read_tokenizer(start, f"--model {start}")
        chat = ChatFormat(tokenizer, earlier_reasoning=recipe.earlier_reasoning)
        stream = lesson_stream(recipe, chat)
        click.echo(f"warmup: {recipe.steps} steps on {', '.join(recipe.envs)}")
        transformers_logging.disable_progress_bar()
        from learner.step.trainer import Trainer

        trainer = Trainer(start, recipe.learner, None, seed=recipe.seed)
    cut = batches(stream, recipe.tokens_per_batch, random.Random(recipe.seed))
    fit(trainer, cut, steps=recipe.steps)
    trainer.save_model(out)
    tokenizer.save_pretrained(out)
    half = AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16, trust_remote_code=False)
    half.save_pretrained(out)
    (out / RECORD).write_text(json.dumps(recipe.record(out), indent=2) + "\n", encoding="utf-8")


def lesson_stream(recipe: Recipe, chat: ChatFormat) -> Iterator[Lesson]:
    """Yield lessons without end, from each environment and variant in turn. The first `steps // 10`
    rounds also have a few random sequences to copy."""
    seed, copying = recipe.seed, recipe.steps // 10
    teachers = [
        (
            _tasks(name, seed, recipe.options),
            lessons.teachers(name, chat, recipe.skill, recipe.options),
        )
        for name in recipe.envs
    ]
    end = chat.tokenizer.vocab_size
    practice = lessons.copies(range(end, len(chat.tokenizer)), random.Random(seed))
    for number in itertools.count():
        for tasks, variants in teachers:
            yield from variants[number % len(variants)].lessons(next(tasks))
        if number < copying:
            yield from itertools.islice(practice, 4)


def _tasks(name: str, seed: int, options: Mapping[str, Any]) -> Iterator[Task]:
    """Yield tasks without end, repeating a finite list. Raises UserError if there are no tasks."""
    start = 0
    while True:
        tasks = warmup_tasks(name, options, TASK_POOL, seed, start)
        if not tasks and not start:
            raise UserError(f"env {name}: has no tasks to demonstrate; check --set")
        yield from tasks
        start = start + TASK_POOL if tasks else 0


def batches(
    stream: Iterable[Lesson], tokens_per_batch: int, rng: random.Random
) -> Iterator[list[Lesson]]:
    """Group lessons into batches of at most `tokens_per_batch` padded tokens. A batch has at least
    one lesson."""
    stream = iter(stream)
    while pool := sorted(itertools.islice(stream, POOL), key=lambda a: len(a.token_ids)):
        cut: list[list[Lesson]] = [[]]
        for lesson in pool:
            if (len(cut[-1]) + 1) * len(lesson.token_ids) > tokens_per_batch and cut[-1]:
                cut.append([])
            cut[-1].append(lesson)
        rng.shuffle(cut)
        yield from cut


def fit(
    trainer: Trainer, stream: Iterable[Sequence[Lesson]], *, steps: int, reading: float = 0.6
) -> list[float]:
    """Train for `steps` optimizer steps, one batch each. Returns the loss of each step.

    During the first `reading` share of the steps, tokens outside replies count a little too. To
    predict a world's lines, a model must learn to copy names. Acting needs this skill first, and
    the few tokens of replies teach it slowly.
    """
    losses = []
    began = reported = time.monotonic()
    for step, batch in enumerate(itertools.islice(stream, steps), start=1):
        rows = rows_of_lessons(batch, others=0.3 if step <= reading * steps else 0.0)
        losses.append(trainer.step(rows).metrics["learner/loss"])
        now = time.monotonic()
        if step == steps or now >= reported + PROGRESS_S:
            reported = now
            click.echo(f"warmup step {step}/{steps} loss {losses[-1]:.3f} {now - began:.0f} s")
    return losses


def rows_of_lessons(batch: Sequence[Lesson], *, others: float = 0.0) -> list[Row]:
    """Convert lessons to supervised rows. The loss is the weighted mean of −log π(token | before).

    Tokens that the response mask selects have weight 1. The other tokens of a lesson have the
    weight `others`, or 0 in lessons that teach copying. They form a second row, which shares its
    prefix, and so its computation, with the first row.
    """
    rows = []
    for lesson in batch:
        rows.append(_row(lesson.token_ids, lesson.response_mask, 1.0))
        if others and lesson.kind != "copy":
            rows.append(_row(lesson.token_ids, ~lesson.response_mask, others))
    total = sum(row.weight * float(row.mask.sum()) for row in rows)
    return [replace(row, weight=row.weight / total) for row in rows]


def _row(token_ids: Int32, mask: Bool, weight: float) -> Row:
    mask = mask.copy()
    mask[0] = False  # it has no context to be predicted from
    end = int(np.flatnonzero(mask)[-1]) + 1
    unused = np.zeros(end, dtype=np.float32)
    return Row(token_ids[:end], mask[:end], unused, aux=True, weight=weight)


def _tiny_model(recipe: Recipe, folder: Path) -> Path:
    """Write the untrained tiny policy to `folder`. It knows the words of every built-in world, so
    that its training can continue in another world."""
    names = dict.fromkeys([*BUILTIN_WORLDS, *recipe.envs])
    worlds = [
        demonstrating(name, **(recipe.options if name in recipe.envs else {})) for name in names
    ]
    tokenizer = tiny_policy.build_tokenizer(t for world in worlds for t in lessons.texts(world))
    tokenizer.save_pretrained(folder)
    tiny_policy.build_model(tokenizer, seed=recipe.seed).save_pretrained(folder)
    return folder
