"""Supervised warm start: teach a policy to read a world, to reflect and to obey guidance.

    Teacher ─► lessons ─► batches of similar length ─► Trainer.step ─► Hugging Face folder

Some rules of the world are withheld from the demonstrator, so that the policy still has
something to learn from reward. A lesson is learned as an auxiliary sample is: the trainer is the
one that later learns from reward, told to train on supervised rows only.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from envs import registry
from envs.base import SeededTasks, Skill
from envs.builtin.policy import BUILTIN_WORLDS
from learner.step.batch import Row
from learner.warmup import lessons, tiny_policy
from learner.warmup.lessons import Lesson
from r3l.algorithms.grpo import GRPOConfig
from r3l.algorithms.r3l import R3LConfig
from r3l.config import ActorConfig, EnvConfig, LearnerConfig, RunConfig
from r3l.errors import UserError
from r3l.model_folder import check_model_folder, read_tokenizer, user_path
from r3l.records import Bool, Int32, SlotResult, Task, Trajectory
from r3l.rollout.chat import ChatFormat, EarlierReasoning
from r3l.rollout.group import explore_group
from r3l.rollout.interfaces import Policy

if TYPE_CHECKING:
    from learner.step.trainer import Trainer

SMALL_BYTES = 64 << 20  # of weights
POOL = 256
"""Lessons sorted by length at a time, so that a batch holds little padding."""


@dataclass(frozen=True)
class Quality:
    """How a policy plays held-out tasks, as shares of 1.

    `success` of first attempts; `parsed` reflections; `pivots` that are the teacher's; then, of
    the attempts that failed: success of a `guided` retry from the pivot and of a plain `restart`.
    """

    tasks: int
    success: float
    parsed: float
    pivots: float
    guided: float
    restart: float


def warmup(
    envs: Sequence[str],
    model_folder: Path | None,
    out: Path,
    *,
    steps: int = 2000,
    tokens_per_batch: int = 2048,
    lr: float = 3e-3,
    seed: int = 0,
    withheld: int = 4,
    waste: float = 0.03,
    measured: int = 100,
    earlier_reasoning: EarlierReasoning = "refuse",
) -> dict[str, Quality]:
    """Warm a policy up on `envs` and save it in `out`; returns its quality on each environment.

    `model_folder`: a Hugging Face folder to go on from; None makes the tiny policy. `withheld`
    rules of each world stay unknown; `measured` held-out tasks are played at the end (0: none).
    `earlier_reasoning`: what to do with a chat template that removes it, as in r3l.rollout.chat.
    Raises UserError for an environment without lessons.
    """
    from learner.step.trainer import Trainer

    skill = Skill(withheld=withheld, waste=waste)
    config = LearnerConfig(
        lr=lr,
        steps=steps,
        betas=(0.9, 0.98),
        weight_decay=0.01,
        warmup_steps=max(1, steps // 20),
        schedule="linear",
        min_lr_share=0.1,
        tokens_per_micro_batch=tokens_per_batch,
    )
    with tempfile.TemporaryDirectory(prefix="r3l-warmup-") as made_here:
        start = model_folder or _tiny_model(envs, Path(made_here), seed)
        check_model_folder(start, f"--model {start}")
        tokenizer = read_tokenizer(start, f"--model {start}")
        chat = ChatFormat(tokenizer, earlier_reasoning=earlier_reasoning)
        stream = lesson_stream(envs, chat, skill, seed=seed, copying=steps // 10)
        trainer = Trainer(start, config, None, seed=seed)
    fit(trainer, batches(stream, tokens_per_batch, random.Random(seed)), steps=steps)
    trainer.save_model(out)
    tokenizer.save_pretrained(out)
    AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16).save_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    policy = tiny_policy.LocalPolicy(model, chat, seed=seed)
    quality = {name: measure(policy, name, measured) for name in envs if measured}
    made = {
        "command": _command(
            envs, out, model_folder, steps, tokens_per_batch, lr, seed, withheld, earlier_reasoning
        ),
        "from": _origin(model_folder),
        "steps": steps,
        "tokens_per_batch": tokens_per_batch,
        "lr": lr,
        "seed": seed,
        "skill": asdict(skill),
        "quality": {name: asdict(value) for name, value in quality.items()},
    }
    (out / "warmup.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    return quality


def _command(
    envs: Sequence[str],
    out: Path,
    model: Path | None,
    steps: int,
    tokens: int,
    lr: float,
    seed: int,
    withheld: int,
    earlier_reasoning: EarlierReasoning,
) -> str:
    """The command line that makes this folder again."""
    names = " ".join(f"--env {name}" for name in envs)
    start = f" --model {model}" if model is not None else ""
    keep = f" --earlier-reasoning {earlier_reasoning}" if earlier_reasoning != "refuse" else ""
    return (
        f"r3l-learner warmup {names}{start} --out {out} --steps {steps} "
        f"--tokens-per-batch {tokens} --lr {lr:g} --seed {seed} --withheld {withheld}{keep}"
    )


def _origin(folder: Path | None) -> Any:
    """How the folder that training went on from was made, as far as it says so itself."""
    record = folder / "warmup.json" if folder is not None else None
    if record is not None and record.is_file():
        return json.loads(record.read_text(encoding="utf-8"))
    return str(folder or "nothing")


@click.command("warmup")
@click.option("--env", "envs", multiple=True, required=True, help="environment; may be repeated")
@click.option("--model", type=Path, help="Hugging Face folder to go on from; unset: the tiny one")
@click.option("--out", type=Path, required=True, help="folder to write, must not exist")
@click.option(
    "--steps", type=click.IntRange(1), default=2000, show_default=True, help="optimizer steps"
)
@click.option(
    "--tokens-per-batch",
    type=click.IntRange(1),
    default=2048,
    show_default=True,
    help="padded tokens a step",
)
@click.option(
    "--lr",
    type=click.FloatRange(0, 1, min_open=True),
    default=3e-3,
    show_default=True,
    help="highest learning rate",
)
@click.option(
    "--seed",
    type=click.IntRange(0, (1 << 32) - 1),
    default=0,
    show_default=True,
    help="seed of model, tasks and order",
)
@click.option(
    "--withheld",
    type=click.IntRange(0),
    default=4,
    show_default=True,
    help="rules left for reward to teach",
)
@click.option(
    "--earlier-reasoning",
    type=click.Choice(get_args(EarlierReasoning)),
    default="refuse",
    show_default=True,
    help="chat templates that remove it",
)
@click.option(
    "--measured",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="held-out tasks played at the end",
)
def warmup_command(envs: tuple[str, ...], model: Path | None, out: Path, **settings: Any) -> None:
    """Teach a policy, from demonstrations, to act, to reflect and to follow advice."""
    if not settings["lr"] > 0:
        raise UserError(f"--lr {settings['lr']}: must be a number above 0, such as 3e-3")
    if user_path(str(out)).exists():
        raise UserError(f"--out {out}: exists; warmup writes a new folder, name another")
    weights = model.glob("*.safetensors") if model is not None else ()
    if sum(path.stat().st_size for path in weights) < SMALL_BYTES:
        torch.set_num_threads(1)  # more threads would spin against each other
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be made ({error.strerror})") from None
    try:
        found = warmup(envs, model, out, **settings)
    except BaseException:
        with suppress(OSError):  # it holds something already
            out.rmdir()
        raise
    for name, quality in found.items():
        shares = " ".join(f"{k} {v:.2f}" for k, v in asdict(quality).items() if k != "tasks")
        click.echo(f"{name} ({quality.tasks} tasks): {shares}")


def lesson_stream(
    envs: Sequence[str], chat: ChatFormat, skill: Skill, *, seed: int, copying: int
) -> Iterator[Lesson]:
    """An endless stream of lessons, environments and their variants in turn; the first `copying`
    tasks also bring a few random sequences to copy each."""
    teachers = [(SeededTasks(name), lessons.teachers(name, chat, skill)) for name in envs]
    end = chat.tokenizer.vocab_size
    practice = lessons.copies(range(end, len(chat.tokenizer)), random.Random(seed))
    for number in itertools.count():
        for source, variants in teachers:
            (task,) = source.tasks("warmup", 1, seed, number)
            yield from variants[number % len(variants)].lessons(task)
        if number < copying:
            yield from itertools.islice(practice, 4)


def batches(
    stream: Iterable[Lesson], tokens_per_batch: int, rng: random.Random
) -> Iterator[list[Lesson]]:
    """Batches of at most `tokens_per_batch` padded tokens (at least one lesson each)."""
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
    """One optimizer step for each of `steps` batches; returns the loss of each.

    For the first `reading` share of the steps all tokens count a little, not only replies: to
    predict a world's lines a model must copy names, which is what acting asks for first and what
    the few tokens of the replies teach slowly.
    """
    began, losses = time.monotonic(), []
    for step, batch in enumerate(itertools.islice(stream, steps), start=1):
        rows = rows_of_lessons(batch, others=0.3 if step <= reading * steps else 0.0)
        losses.append(trainer.step(rows).metrics["learner/loss"])
        if step % 50 == 0 or step == steps:
            seconds = time.monotonic() - began
            click.echo(f"warmup step {step}/{steps} loss {losses[-1]:.3f} {seconds:.0f} s")
    return losses


def rows_of_lessons(batch: Sequence[Lesson], *, others: float = 0.0) -> list[Row]:
    """Lessons as supervised rows: the loss is the weighted mean of −log π(token | before).

    Tokens under the response mask weigh 1, the others of a lesson `others` (0 in what was made
    up for copying) as a row of their own, which the trainer computes together with the first.
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
    mask[0] = False  # nothing stands before it
    end = int(np.flatnonzero(mask)[-1]) + 1
    unused = np.zeros(end, dtype=np.float32)
    return Row(token_ids[:end], mask[:end], unused, aux=True, weight=weight)


def measure(policy: Policy, env: str, count: int, *, seed: int = 0) -> Quality:
    """Play `count` held-out tasks at temperature 1: attempt, reflect, retry; restart failures."""
    tasks = registry.task_source(env).tasks("eval", count, seed)
    groups = asyncio.run(_explore(policy, env, tasks, reflect=True))
    firsts = [_slot(results, "base").trajectory for results in groups]
    seconds = [_slot(results, "distilled") for results in groups]
    failed = [i for i, first in enumerate(firsts) if first is None or first.reward < 1.0]
    again = asyncio.run(_explore(policy, env, [tasks[i] for i in failed], reflect=False))
    thoughts = [slot.reflection for slot in seconds]
    right = [
        first is not None and thought is not None and thought.pivot == _pivot(env, task, first)
        for task, first, thought in zip(tasks, firsts, thoughts, strict=True)
    ]
    return Quality(
        tasks=count,
        success=1.0 - len(failed) / count,
        parsed=_share([thought is not None and not thought.cause for thought in thoughts]),
        pivots=_share(right),
        guided=_share([_succeeded(seconds[i]) for i in failed if seconds[i].trajectory]),
        restart=_share([_succeeded(_slot(results, "base")) for results in again]),
    )


async def _explore(
    policy: Policy, env: str, tasks: Sequence[Task], *, reflect: bool
) -> list[list[SlotResult]]:
    config = RunConfig(
        env=EnvConfig(name=env),
        algorithm=R3LConfig(group_size=2) if reflect else GRPOConfig(group_size=1),
        actor=ActorConfig(max_reflection_tokens=256),
    )
    make = partial(registry.make, env)
    return list(
        await asyncio.gather(*(explore_group(task, policy, make, config) for task in tasks))
    )


def _pivot(env: str, task: Task, attempt: Trajectory) -> int:
    """The pivot the teacher would choose for an attempt; -1 for none."""
    teacher = lessons.demonstrating(env)
    teacher.reset(seed=task.seed, options=task.options)
    for action in attempt.actions:
        teacher.step(action)
    pivot = teacher.reflection()["retry_from_step"]
    return -1 if pivot is None else int(pivot)


def _slot(results: Sequence[SlotResult], role: str) -> SlotResult:
    return next(result for result in results if result.role == role)


def _succeeded(result: SlotResult) -> bool:
    return result.trajectory is not None and result.trajectory.reward >= 1.0


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 0.0


def _tiny_model(envs: Sequence[str], folder: Path, seed: int) -> Path:
    """Write the tiny policy, untrained, with the words of every built-in world, so that one
    policy can go on from one to the other."""
    names = dict.fromkeys([*BUILTIN_WORLDS, *envs])
    worlds = [lessons.demonstrating(name) for name in names]
    tokenizer = tiny_policy.build_tokenizer(t for world in worlds for t in lessons.texts(world))
    tokenizer.save_pretrained(folder)
    tiny_policy.build_model(tokenizer, seed=seed).save_pretrained(folder)
    return folder
