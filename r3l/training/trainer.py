"""Makes optimizer steps with plain PyTorch, in one process.

    batch ─► algorithm.rows ─► Trainer.step ─► weights ─► LocalPolicy.load

learner/step/deepspeed_trainer.py does so on many GPUs, with the same losses and metrics.
"""

import copy
import math
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from r3l.algorithms.queries import Answer, Query, Weights
from r3l.algorithms.rows import Row
from r3l.errors import UserError
from r3l.models.model_folder import check_model_folder
from r3l.models.model_path import model_path
from r3l.models.weight_files import check_trainable
from r3l.records import Int32
from r3l.training.answers import Answers
from r3l.training.averaged_weights import DECAY, AveragedWeights
from r3l.training.measures.drift import reliance_of_retries
from r3l.training.measures.part_gradients import PartGradients
from r3l.training.micro_batch import MicroBatch, check_tokens, collate, micro_batches
from r3l.training.model import LogitsModule, PolicyModule, Scores, load_model
from r3l.training.step_loss import AnyTrainer, Loss, StepResult, Sums, step_loss, step_metrics

Model: TypeAlias = str | Path | nn.Module
"""A name or a folder, as in the setting `model`; or a module from token ids [B, T] to logits."""
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Trainer(AnyTrainer):
    """Trains a model with AdamW, or with the optimizer that `optimizer` makes of its parameters.

    `model`: "builtin", "smollm2", a model folder, or a module of the user's, which is trained in
    place (r3l.training.model.LogitsModule). `reference`: the reference model, by default the model
    as it is now. `needs`: the weights under which queries may ask, as in the algorithm's `needs`.
    `average_decay`: of the averaged weights. `tokens_per_micro_batch` bounds the memory.
    `part_norms`: measure the gradient norm of each part of the loss, by one more backward pass for
    each. `device`: by default the module's own; for a folder, a GPU if there is one. The
    number of threads is the caller's (r3l.training.measures.processor.fix_threads).
    """

    def __init__(
        self,
        model: Model,
        *,
        lr: float = 1e-6,
        optimizer: MakeOptimizer | None = None,
        grad_clip: float = 1.0,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.95),
        tokens_per_micro_batch: int = 8192,
        reference: Model | None = None,
        needs: Collection[Weights] = (),
        average_decay: float = DECAY,
        part_norms: bool = False,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device | None = None,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        self.module = _module(model, dtype, device)
        self.grad_clip, self.budget = grad_clip, tokens_per_micro_batch
        trained = [weights for weights in self.module.lm.parameters() if weights.requires_grad]
        if optimizer is None:
            self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
                trained, lr=lr, betas=betas, weight_decay=weight_decay, fused=True
            )
        else:
            self.optimizer = optimizer(trained)
        self.reference: PolicyModule | LogitsModule | None = None
        if "reference" in needs:
            given = reference if reference is not None else model
            same = copy.deepcopy(given) if isinstance(given, nn.Module) else given
            self.reference = _module(same, dtype, device).eval().requires_grad_(False)
        self.average: AveragedWeights | None = None
        if "averaged" in needs:
            self.average = AveragedWeights(self.module.lm.named_parameters(), average_decay)
        self.held: set[Weights] = {"current", *needs}
        self.part_norms = part_norms

    @property
    def device(self) -> torch.device:
        return next(self.module.lm.parameters()).device

    def step(self, rows: Sequence[Row], loss: Loss) -> StepResult:
        """Makes one optimizer step on `rows`, with an algorithm's `loss`. A step whose loss or
        gradient is not finite changes nothing. Raises UserError for rows that the model cannot read
        and for a loss without parts."""
        began = time.monotonic()
        self._check_tokens(("a row", row.token_ids) for row in rows)
        referenced = any(row.reference is not None for row in rows)
        self.optimizer.zero_grad()
        parts = PartGradients(self.module.lm.parameters()) if self.part_norms else None
        sums: Sums = {}
        for own in self._cut(rows):
            micro = collate(own, self.device, referenced=referenced)
            total, added = step_loss(micro, loss, self.module, self.module.pack, parts)
            total.backward()
            for name, value in added.items():
                sums[name] = sums.get(name, 0.0) + value
        norm = float(nn.utils.clip_grad_norm_(self.module.lm.parameters(), self.grad_clip))
        applied = math.isfinite(norm) and math.isfinite(sums["loss"])
        if applied:
            self.optimizer.step()
            if self.average is not None:
                self.average.update()
        self.optimizer.zero_grad()
        metrics = step_metrics(
            sums,
            norm=norm,
            grad_clip=self.grad_clip,
            seconds=time.monotonic() - began,
            lr=float(self.optimizer.param_groups[0]["lr"]),
            tokens_per_micro_batch=float(self.budget),
            **(parts.norms() if parts else {}),
        )
        return StepResult(applied, metrics, reliance=reliance_of_retries(sums))

    def answers(self, queries: Sequence[Query]) -> dict[Hashable, Answer]:
        """Answers queries, by their keys, in one pass without gradients. Raises UserError."""
        self._check_tokens((f"query {query.key!r:.80}", query.token_ids) for query in queries)
        answers = Answers(queries, self.held, self._vocabulary)
        answers.fill(self._score, self._cut, self.device)
        return answers.read()

    def weights(self) -> dict[str, Tensor]:
        """Returns copies of the parameters, by their names. Tied parameters appear once."""
        named = self.module.lm.named_parameters()
        return {name: weights.detach().clone() for name, weights in named}

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Sets the parameters to `weights`, named as in `weights()`. The optimizer's state stays.
        Raises UserError if names or shapes differ."""
        load_weights(self.module.lm, weights)

    def _score(self, kind: Weights, micro: MicroBatch, top: int) -> Scores:
        module = self.reference if kind == "reference" else self.module
        assert module is not None
        averaged = kind == "averaged" and self.average is not None
        with self.average.in_place() if averaged else nullcontext():  # type: ignore[union-attr]
            scores: Scores = module(micro.nodes, micro.mask_BT, micro.temperatures_B, top)
            return scores

    def _cut(self, rows: Sequence[Row]) -> list[list[Row]]:
        return micro_batches(rows, self.budget, 1, shared=self.module.pack != "rows")[0]

    @property
    def _vocabulary(self) -> int | None:
        """The number of tokens that the model knows; None if it does not say."""
        config: Any = getattr(self.module.lm, "config", None)
        if not hasattr(config, "get_text_config"):
            return None
        return int(config.get_text_config().vocab_size)

    def _check_tokens(self, sequences: Iterable[tuple[str, Int32]]) -> None:
        if self._vocabulary is not None:
            check_tokens(sequences, self._vocabulary)


def _module(
    model: Model, dtype: torch.dtype, device: str | torch.device | None
) -> PolicyModule | LogitsModule:
    """Loads a model, or wraps the user's. Raises UserError."""
    if isinstance(model, nn.Module):
        return LogitsModule(model if device is None else model.to(device))
    folder = model_path(str(model))
    check_model_folder(folder, f"model {model}", tokenizer=False)
    check_trainable(folder, f"model {model}")
    module = load_model(folder, dtype)
    module.to(device or default_device())
    return module


def default_device() -> str:
    """Returns "cuda" if there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@torch.no_grad()
def load_weights(lm: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copies weights into a module. Raises UserError unless names and shapes match its
    parameters."""
    named = dict(lm.named_parameters())
    unlike = sorted(named.keys() ^ weights.keys())
    unlike += [
        name for name in named if name in weights and named[name].shape != weights[name].shape
    ]
    if unlike:
        raise UserError(
            f"weights: {len(unlike)} names or shapes differ from the model's, such as "
            f"{unlike[0]}; load weights of the same model"
        )
    for name, parameter in named.items():
        parameter.copy_(weights[name])
