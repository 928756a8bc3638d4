"""What trainers learn from the same rows, and what they answer to the same queries."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learner.step.deepspeed_trainer import DeepSpeedTrainer
from r3l.algorithms.batch import Batch
from r3l.algorithms.queries import Query, TopK
from r3l.algorithms.r3l import R3L
from r3l.run.config import load
from r3l.training.step_loss import AnyTrainer
from tests.learner.fakes import measured, rows_of_rank_0
from tests.r3l.training.fakes import explored

ALGORITHM = R3L(group_size=4, kl_coef=0.1, clipped=True, sft_share=None)
SETTINGS = ("learner.lr=1e-3", "learner.tokens_per_micro_batch=128", "learner.compute=dtype")
NEEDS = ("reference", "averaged")
DECAY = 0.5
Seen = dict[str, Any]


def queries(*weights: Any) -> list[Query]:
    """Questions about the same conversations under several weights."""
    attempts = [attempt for group in explored() for attempt in group.trajectories]
    asked = []
    for number, one in enumerate(attempts):
        for kind in weights:
            for find in ("logprobs", "entropy", "topk"):
                key, k = f"{number} {kind} {find}", 2 * (find == "topk")
                ids, mask = one.token_ids, one.responses_from(number % 4)
                asked.append(Query(key, ids, mask, find, kind, 0.7 + 0.1 * (number % 5), k))
    return asked


def seen_by(trainer: AnyTrainer, asked: Sequence[Query]) -> Seen:
    """Three steps on the same groups, and the answers after them."""
    rows = rows_of_rank_0(trainer, ALGORITHM, Batch(explored()))
    steps = [measured(trainer.step(rows, ALGORITHM.loss)) for _ in range(3)]
    answers = trainer.answers(asked)
    return {
        "steps": steps,
        "answers": {key: _plain(answer) for key, answer in answers.items()},
    }


def _plain(answer: Any) -> list[Any]:
    if isinstance(answer, TopK):
        return [answer.logprobs.tolist(), answer.token_ids.tolist()]
    found: list[Any] = np.asarray(answer).tolist()
    return found


def trainer_with(model: Path, *settings: str) -> DeepSpeedTrainer:
    config = load(None, [*SETTINGS, *(f"learner.{setting}" for setting in settings)]).learner
    needs = NEEDS if config.zero_stage < 3 else NEEDS[:1]
    return DeepSpeedTrainer(model, config, needs=needs, average_decay=DECAY)


def kinds(trainer: DeepSpeedTrainer) -> list[str]:
    return sorted(trainer.held)


def watch(out: Path, model: Path, *variants: str) -> None:
    """Writes OUT/<rank>.json: what a rank saw with each of `variants` (learner settings)."""
    seen = {}
    for variant in variants:
        trainer = trainer_with(model, *variant.split(";"))
        seen[variant] = seen_by(trainer, queries(*kinds(trainer)))
        weights = {name: tensor.tolist() for name, tensor in trainer.weights()}
        seen[variant]["weights"] = weights
    (out / f"{torch.distributed.get_rank()}.json").write_text(json.dumps(seen))
