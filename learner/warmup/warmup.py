"""The supervised warm-up: teaches a policy to read a world, to reflect and to follow guidance.

    Teacher ─► lessons ─► batches of similar length ─► Trainer.step ─► Hugging Face folder

Some rules of a world are not demonstrated. The policy learns these rules later, from reward.
A warm-up uses the same trainer as a run. Each lesson is an auxiliary sample.
"""

import itertools
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from envs.demonstrations import demonstrating, warmup_tasks
from learner import checkpoint
from learner.checkpoint import CHECKPOINTS, Checkpoints, RunState, load_run
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from learner.warmup import lessons, tiny_policy
from learner.warmup.lessons import Lesson, message_lessons, shuffled
from learner.warmup.recipe import RECORD, Recipe
from learner.warmup.stopping import stop_asked
from r3l.algorithms.losses import imitation_loss
from r3l.algorithms.rows import Row, supervised
from r3l.errors import UserError
from r3l.models.model_folder import (
    CHECKSUMS,
    UNFINISHED,
    check_model_folder,
    read_tokenizer,
)
from r3l.models.weight_files import check_trainable
from r3l.records import Bool, Int32, Task
from r3l.rollout.chat import ChatFormat
from r3l.run.process.command_line import echo

ALWAYS = ("workshop", "keys")
"""The worlds whose words every tiny policy knows: those of the shipped policy."""
NAMES = {"play": "demonstrations", "reflect": "reflections", "retry": "guided retries",
         "copy": "copying", "data": "your conversations"}  # fmt: skip
"""What the user reads, by a lesson's kind."""
TASK_POOL = 64
"""The number of tasks that are requested at a time."""
READING = 0.6
"""Until this share of the steps is done, the tiny policy also learns to predict what it reads."""
OWN_A_ROUND = 3
"""The number of the user's own conversations in a round of lessons (see `lesson_stream`)."""
PROGRESS_S = 5.0
"""Seconds between two progress lines."""
SAVE_S = 120.0
"""Seconds between two checkpoints."""
POOL = 256
"""The number of lessons that are sorted by length at a time, so that batches have less padding."""


def warmup(recipe: Recipe, out: Path) -> None:
    """Warms up a policy and saves it in `out`. Continues an interrupted warm-up in `out`. Raises
    UserError if that warm-up had another recipe, or if lessons cannot be made."""
    with tempfile.TemporaryDirectory(prefix="r3l-warmup-") as made_here:
        start = recipe.start or _tiny_model(recipe, Path(made_here))
        check_model_folder(start, f"--model {recipe.model or start}")
        check_trainable(start, f"--model {recipe.model or start}")
        tokenizer = read_tokenizer(start, f"--model {recipe.model or start}")
        chat = ChatFormat(tokenizer, earlier_reasoning=recipe.earlier_reasoning)
        settings = AutoConfig.from_pretrained(start, local_files_only=True)
        context = getattr(settings, "max_position_embeddings", 1 << 30)
        own = message_lessons(recipe.data, chat, context) if recipe.data is not None else []
        stream = lesson_stream(recipe, chat, own)
        first = list(itertools.islice(stream, POOL))  # nothing is written if they cannot be made
        _check_lengths(first, recipe, context)
        stream = itertools.chain(first, stream)
        cut = batches(stream, recipe.tokens_per_batch, random.Random(recipe.seed))
        transformers_logging.disable_progress_bar()
        newest = _begin(recipe, out)
        trainer, state = load_run(newest, start, recipe.learner, None, recipe.seed)
    again = f", continued after step {state.version}" if newest else ""
    taught = ", ".join([*recipe.envs, *([recipe.data.name] if recipe.data else [])])
    kinds = f"its first {len(first)} lessons: {kinds_of(first)}"
    echo(f"warmup: {recipe.steps} steps on {taught}, lr {recipe.lr:g}{again}; {kinds}")
    saving = Checkpoints(trainer, out / CHECKPOINTS, tokenizer, keep=1)
    reading = 0.0 if recipe.pretrained else READING
    steps, done = recipe.steps or 0, state.version
    with stop_asked() as stops:
        fit(trainer, cut, steps=steps, reading=reading, done=done, saving=saving, stops=stops)
    saving.close()
    trainer.save_model(out)
    tokenizer.save_pretrained(out)
    dtype = _dtype(start) if recipe.pretrained else torch.bfloat16
    if dtype != torch.float32:
        half = AutoModelForCausalLM.from_pretrained(out, dtype=dtype, trust_remote_code=False)
        half.save_pretrained(out)
    (out / UNFINISHED).rename(out / RECORD)
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    echo(f"saved in {out}, as {str(_dtype(out)).removeprefix('torch.')}")


def kinds_of(lessons: Iterable[Lesson]) -> str:
    """Says which kinds of lessons there are, and the share of each, the most frequent first."""
    counts = Counter(lesson.kind for lesson in lessons)
    total = counts.total()
    return ", ".join(f"{NAMES[kind]} {n / total:.0%}" for kind, n in counts.most_common())


def _check_lengths(lessons: Iterable[Lesson], recipe: Recipe, context: int) -> None:
    """Raises UserError if a lesson has more than `context` tokens."""
    longest = max(lessons, key=lambda lesson: len(lesson.token_ids))
    if (length := len(longest.token_ids)) > context:
        raise UserError(
            f"--env {' '.join(recipe.envs)}: a lesson ({longest.kind}) has {length} tokens, more "
            f"than the model's context of {context}; shorten the tasks with --set, or take another "
            "--model"
        )


def _dtype(folder: Path) -> torch.dtype:
    """Returns the number format in which a model folder's weights are stored."""
    stored: Any = AutoConfig.from_pretrained(folder, local_files_only=True).dtype
    return stored if isinstance(stored, torch.dtype) else torch.float32


def _begin(recipe: Recipe, out: Path) -> Path | None:
    """Writes the file UNFINISHED. Returns the newest checkpoint in `out`, or None."""
    record, file = json.dumps(recipe.record(out), indent=2) + "\n", out / UNFINISHED
    if file.exists() and file.read_text(encoding="utf-8") != record:
        raise UserError(f"--out {out}: holds another unfinished warm-up; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(record, encoding="utf-8")
    (out / CHECKSUMS).unlink(missing_ok=True)  # of a model that was in this folder
    return checkpoint.latest(out / CHECKPOINTS)


def lesson_stream(recipe: Recipe, chat: ChatFormat, own: Sequence[Lesson] = ()) -> Iterator[Lesson]:
    """Yields lessons endlessly, in rounds. A round has a few lessons of `own` and one task of
    each environment. An environment's practice variants take turns. If the model is not pretrained,
    the first rounds also teach the model to copy tokens."""
    seed, copying = recipe.seed, 0 if recipe.pretrained else (recipe.steps or 0) // 10
    teachers = [
        (
            _tasks(name, seed, recipe.options),
            lessons.teachers(
                name, chat, recipe.skill, recipe.options, recipe.guidance_text or "report"
            ),
        )
        for name in recipe.envs
    ]
    practice = lessons.copies(_words(chat.tokenizer) if copying else (), random.Random(seed))
    conversations = shuffled(own, random.Random(seed))
    for number in itertools.count():
        yield from itertools.islice(conversations, OWN_A_ROUND if own else 0)
        for tasks, variants in teachers:
            yield from variants[number % len(variants)].lessons(next(tasks))
        if number < copying:
            yield from itertools.islice(practice, 4)


def _words(tokenizer: Any) -> list[int]:
    """Returns the token ids for lessons in copying, without special tokens. If words were
    added to the tokenizer, as for the tiny policy, returns only the ids of those words."""
    added, special = tokenizer.added_tokens_decoder, set(tokenizer.all_special_ids)
    words = [i for i, token in added.items() if not token.special and i not in special]
    return sorted(words) or sorted(set(tokenizer.get_vocab().values()) - set(added) - special)


def _tasks(name: str, seed: int, options: Mapping[str, Any]) -> Iterator[Task]:
    """Yields tasks endlessly; a finite list repeats. Raises UserError if there are no tasks."""
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
    """Groups lessons into batches of at most `tokens_per_batch` tokens, padding included. A lesson
    with more tokens is a batch of its own."""
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
    trainer: DeepSpeedTrainer,
    stream: Iterable[Sequence[Lesson]],
    *,
    steps: int,
    reading: float = READING,
    done: int = 0,
    saving: Checkpoints | None = None,
    stops: Callable[[], bool] = lambda: False,
) -> list[float]:
    """Trains from step `done` + 1 to step `steps`. Returns the losses. Step n trains on the nth
    batch. With `saving`, saves a checkpoint every SAVE_S seconds, and when `stops` says to stop;
    then raises KeyboardInterrupt.

    `reading`: share of the steps that also train on tokens outside replies, with a small weight.
    These steps come first. They teach a model to copy names, which it needs to act.
    """
    losses, tokens = list[float](), 0
    began = reported = saved = time.monotonic()
    for step, batch in enumerate(itertools.islice(stream, done, steps), start=done + 1):
        tokens += sum(len(lesson.token_ids) for lesson in batch)
        rows = rows_of_lessons(batch, others=0.3 if step <= reading * steps else 0.0)
        losses.append(trainer.step(rows, imitation_loss).metrics["learner/loss"])
        now = time.monotonic()
        if step == steps or now >= reported + PROGRESS_S:
            reported = now
            spent = max(now - began, 1e-3)
            left = spent / (step - done) * (steps - step)
            echo(
                f"warmup step {step}/{steps} loss {losses[-1]:.3f} {spent:.0f} s "
                f"{tokens / spent:.0f} tokens/s, {left:.0f} s left"
            )
        stopping = step < steps and stops()
        if saving is not None and (stopping or now >= saved + SAVE_S):
            saved = now
            saving.save(RunState(step))
        if stopping:
            if saving is not None:
                saving.close()
            raise KeyboardInterrupt
    return losses


def rows_of_lessons(batch: Sequence[Lesson], *, others: float = 0.0) -> list[Row]:
    """Converts lessons to supervised rows. The loss is the weighted mean of −log π(token | before).
    Learned tokens have weight 1. Other tokens have the weight `others`, or 0 if the lesson teaches
    copying."""
    rows = []
    for lesson in batch:
        rows.append(_row(lesson.token_ids, lesson.response_mask, 1.0))
        if others and lesson.kind != "copy":
            # One row is a prefix of the other, so they share their computation.
            rows.append(_row(lesson.token_ids, ~lesson.response_mask, others))
    total = sum(float(row.weights[row.mask].sum()) for row in rows)
    return [row.scaled(1 / total) for row in rows]


def _row(token_ids: Int32, mask: Bool, weight: float) -> Row:
    mask = mask.copy()
    mask[0] = False  # it has no context to be predicted from
    return supervised(token_ids, mask, weight)


def _tiny_model(recipe: Recipe, folder: Path) -> Path:
    """Writes an untrained tiny policy to `folder`. Its tokenizer also knows the words of ALWAYS,
    for later warm-ups."""
    names = dict.fromkeys([*ALWAYS, *recipe.envs])
    worlds = [
        demonstrating(name, **(recipe.options if name in recipe.envs else {})) for name in names
    ]
    tokenizer = tiny_policy.build_tokenizer(t for world in worlds for t in lessons.texts(world))
    tokenizer.save_pretrained(folder)
    tiny_policy.build_model(tokenizer, seed=recipe.seed).save_pretrained(folder)
    return folder
