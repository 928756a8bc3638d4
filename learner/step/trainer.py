"""Makes optimizer steps with DeepSpeed: rows in, updated weights and metrics out.

rows ─► micro-batches of this rank ─► forward ─► loss ─► backward … ─► step
                                                                  │
              not finite, or out of memory, on any rank ──────────┴─► all ranks discard the step

A step that must not be applied is poisoned: its loss is multiplied by NaN. The global gradient norm
is then NaN on every rank, and every rank discards the step without further communication.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from buffer import Draw
from buffer.storage.rows import TrainedAttempt
from learner.metrics.drift import clipped_share, drift_metrics, drift_sums, engine_metrics
from learner.step import full_weights
from learner.step.adapters import published_apart, without_adapters
from learner.step.batch import (
    MicroBatch,
    Row,
    check_tokens,
    collate,
    micro_batches,
    packing_shares,
    packing_sums,
    rows_of,
    trained_attempts,
)
from learner.step.deepspeed_config import deepspeed_config, learning_rate_share
from learner.step.full_weights import shard, sharded
from learner.step.model import PolicyModule, load_model, resolve_dtype
from learner.step.process_group import join_process_group
from learner.step.tensor_file import Shape, Write, write_tensors
from learner.watchdog import heartbeat
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.losses import TokenBatch, sft
from r3l.errors import RestartNeeded, TrainingStopped
from r3l.run.settings.learner import LearnerConfig

log = logging.getLogger(__name__)
LARGEST = 1e6
"""If a step makes a larger weight, the run ends: products of a few of these overflow float32."""
OUT_OF_MEMORY = (
    "out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC"
)  # fmt: skip
LATER_S = 60.0  # collectives fail after the watchdogs, which log what each rank was doing


@dataclass(frozen=True)
class StepResult:
    """The result of one optimizer step on all ranks. `applied`: False if the loss or gradient was
    not finite. `out_of_memory`: how often the token budget was halved."""

    applied: bool
    metrics: dict[str, float]
    out_of_memory: int = 0
    attempts: tuple[TrainedAttempt, ...] = ()


class StepLeft(Exception):
    """A step was abandoned; its gradients are incomplete and the weights unchanged."""


class Trainer:
    """Trains one model folder with a DeepSpeed engine. Each rank has one trainer.

    Without an `algorithm`, trains on supervised rows only (warm-up). `reference`: folder of the
    reference model, by default `model`. With `learner.lora`, trains only adapters; the reference is
    then the model without adapters. `adapter`: folder of adapters to train further.

    The attribute `adapters` describes the adapters if they are published without the base model,
    else it is None. `budget` is the number of tokens per micro-batch, lowered when memory runs out.
    """

    def __init__(
        self,
        model: Path,
        config: LearnerConfig,
        algorithm: Algorithm | None,
        *,
        seed: int = 0,
        reference: Path | None = None,
        adapter: Path | None = None,
    ) -> None:
        import deepspeed

        torch.manual_seed(seed)
        join_process_group(config.hang_s + LATER_S)
        self.config, self.algorithm = config, algorithm
        self.budget = config.tokens_per_micro_batch
        self.dtype = resolve_dtype(config.dtype)
        settings = deepspeed_config(
            config, bf16=self.dtype == torch.bfloat16, gpu=torch.cuda.is_available()
        )
        self.stage = int(settings["zero_optimization"]["stage"])
        load = partial(
            load_model,
            dtype=self.dtype,
            pack=config.pack,
            implementation=config.attention,
            compute=config.compute,
        )
        recomputes = config.gradient_checkpointing
        module = load(model, gradient_checkpointing=recomputes, lora=config.lora, adapter=adapter)
        if self.stage == 3:  # before the reference is loaded: one whole model at a time
            shard(module, settings)
        self.adapted = config.lora.rank > 0
        self.adapters = published_apart(module.lm, model) if self.adapted else None
        self.reference: Any = None
        self.refers = algorithm is not None and algorithm.needs_reference
        if self.refers and not self.adapted:
            frozen = load(reference or model).eval().requires_grad_(False)
            self.reference = sharded(frozen, settings) if self.stage == 3 else frozen
        self.engine, self.optimizer, _, self.schedule = deepspeed.initialize(
            model=module,
            model_parameters=[p for p in module.parameters() if p.requires_grad],
            config=settings,
            lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: learning_rate_share(config, step)
            ),
        )
        self.device = self.engine.device
        self.spent = dict[str, float]()  # seconds by phase of the step
        self.leaves: Callable[[], bool] = lambda: False  # whether rank 0 was asked to end
        if self.reference is not None and self.stage < 3:
            self.reference.to(self.device)
        self.rank, self.world = self.engine.global_rank, self.engine.world_size
        self.ruined = self._ruined_weights()  # a model folder may hold some that are never used

    @property
    def module(self) -> PolicyModule:
        """Returns the wrapped model, whose parameters are sharded under ZeRO 3."""
        return self.engine.module  # type: ignore[no-any-return]

    def on_any_rank(self, fact: bool) -> bool:
        """Returns whether `fact` is true on any rank. Collective."""
        return self._over_ranks({"fact": float(fact)})["fact"] > 0

    def rows(self, draw: Draw) -> list[Row]:
        """Makes a draw's training rows, which are equal on all ranks. Raises UserError if the
        model's vocabulary lacks a token."""
        vocabulary = int(self.module.lm.config.get_text_config().vocab_size)
        check_tokens(draw.groups, vocabulary, draw.recalled)
        if self.algorithm is None:
            raise ValueError("this trainer has no algorithm; call step() with supervised rows")
        return rows_of(
            draw.groups,
            self.algorithm,
            draw.row.weights,
            draw.recalled,
            draw.row.replayed,
            draw.version,
        )

    def step(self, rows: Sequence[Row]) -> StepResult:
        """Makes one optimizer step on `rows`, divided among all ranks. If memory runs out, repeats
        the step with a smaller token budget. Raises RestartNeeded if the step cannot be repeated.
        Raises TrainingStopped if the budget cannot be lowered. Raises StepLeft if `leaves` returns
        true on any rank."""
        began = time.monotonic()
        self.spent.clear()
        sums, halvings = self._accumulate(rows)
        heartbeat("the optimizer's update")
        with self._timed("update_s"):
            applied, norm = self._apply()
        seconds = time.monotonic() - began
        metrics = {
            **{name: value for name, value in sums.items() if not name.startswith("sum_")},
            **drift_metrics(sums),
            **engine_metrics(sums),
            **packing_shares(sums),
            "grad_norm": norm,
            "grad_clipped": clipped_share(norm, self.config.grad_clip),
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "tokens_per_micro_batch": float(self.budget),
            "threads": float(torch.get_num_threads()),
            "step_s": seconds,
            **self.spent,
            "tokens_per_s": sums["sum_input_tokens"] / seconds,
        }
        tagged = {f"learner/{name}": value for name, value in metrics.items()}
        return StepResult(applied, tagged, halvings, trained_attempts(rows))

    def check_weights(self, step: int, norm: float) -> None:
        """Raises TrainingStopped on every rank if a weight became NaN or larger than LARGEST.
        Collective. `norm`: the step's gradient norm."""
        if self.on_any_rank(self._ruined_weights() > self.ruined):
            rate = float(self.optimizer.param_groups[0]["lr"])
            raise TrainingStopped(
                f"step {step} made weights that are NaN or beyond ±{LARGEST:g} (gradient norm "
                f"{norm:.3g}, learning rate {rate:.3g}); they were not published; lower learner.lr "
                "and run again with --resume",
                cause="weights_not_finite",
            )

    def _ruined_weights(self) -> int:
        """Counts the weights of this rank that are not finite or exceed LARGEST."""
        # Under ZeRO 3 a rank holds a share of each parameter.
        held = [getattr(p, "ds_tensor", p).detach() for p in self.module.parameters()]
        return sum(int((~(weights.abs() <= LARGEST)).sum()) for weights in held)

    def _accumulate(self, rows: Sequence[Row]) -> tuple[dict[str, float], int]:
        """Repeats `_attempt` until memory suffices. Returns (sums of the last attempt, how often
        the token budget was halved)."""
        halvings, sums = 0, self._attempt(rows)
        while sums.pop("out_of_memory"):
            if self._apply()[0]:  # although a rank has poisoned the gradients
                raise RestartNeeded(
                    "DeepSpeed applied a step that had run out of memory", cause="out_of_memory"
                )
            self.budget = smaller_budget(self.budget, _longest(rows))
            log.warning("out of memory: continuing with %d tokens per micro-batch", self.budget)
            sums, halvings = self._attempt(rows), halvings + 1
        return sums, halvings

    def _attempt(self, rows: Sequence[Row]) -> dict[str, float]:
        """Accumulates the gradients of all micro-batches. Returns sums over all ranks, for metrics.
        If memory runs out, continues with empty, poisoned micro-batches."""
        shared = self.module.pack != "rows"
        mine = micro_batches(rows, self.budget, self.world, shared=shared)[self.rank]
        sums: dict[str, float] = {}
        lost = False
        for number, own in enumerate(mine):
            heartbeat(f"micro-batch {number + 1} of {len(mine)}")
            if self.on_any_rank(self.leaves()):
                raise StepLeft
            self.engine.set_gradient_accumulation_boundary(number == len(mine) - 1)
            added = None if lost else self._try_micro_batch(own, _longest(rows))
            if added is None:
                lost = True
                added = self._micro_batch([], poisoned=True)  # collectives need all ranks
            for name, value in added.items():
                sums[name] = sums.get(name, 0.0) + value
        return self._over_ranks(sums | {"out_of_memory": float(lost)})

    def _try_micro_batch(self, rows: Sequence[Row], longest: int) -> dict[str, float] | None:
        """Returns a micro-batch's sums. If memory runs out, returns None under ZeRO 0 and 1, and
        raises RestartNeeded under ZeRO 2 and 3. `longest`: length of the step's longest row."""
        try:
            return self._micro_batch(rows)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            log.warning("rank %d: %s", self.rank, str(error).splitlines()[0])
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.stage >= 2:
            # Backward ended in the middle of its reductions: the engine's state is undefined.
            budget = smaller_budget(self.budget, longest)
            raise RestartNeeded(
                f"out of memory with {self.budget} tokens per micro-batch under ZeRO stage "
                f"{self.stage}; the learner restarts with {budget} tokens",
                cause="out_of_memory",
                tokens_per_micro_batch=budget,
            )
        return None

    def _micro_batch(self, rows: Sequence[Row], *, poisoned: bool = False) -> dict[str, float]:
        with self._timed("forward_s"):
            loss, sums = self.losses(collate(rows, self.device))
        if poisoned or not math.isfinite(sums["loss"]):
            loss = loss * math.nan
        with self._timed("backward_s"):
            # DeepSpeed averages gradients over ranks; the rows' weights are those of the whole step
            self.engine.backward(loss * self.world)
        return sums

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        """On a CPU, adds the block's seconds to `spent[what]`."""
        began = time.monotonic()
        yield
        if self.device.type == "cpu":  # a GPU runs its kernels asynchronously
            self.spent[what] = self.spent.get(what, 0.0) + time.monotonic() - began

    def _apply(self) -> tuple[bool, float]:
        """Applies the step if its gradient norm is finite. Returns (whether the step was applied,
        global gradient norm before clipping)."""
        if self.stage == 0:  # DeepSpeed records no norm, and would apply one that is not finite
            grads = [p.grad for p in self.module.parameters() if p.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
            if not math.isfinite(norm):
                self.engine.zero_grad()
                return False, math.inf
            self.engine.step()
            return True, norm
        self.engine.step()
        return self.engine.was_step_applied(), float(self.engine.get_global_grad_norm() or 0.0)

    def losses(
        self, micro: MicroBatch, forward: Callable[..., Any] | None = None
    ) -> tuple[Tensor, dict[str, float]]:
        """Returns (a micro-batch's loss, sums for metrics). The sums are keyed by name. `forward`
        defaults to the engine."""
        reference_BT, run = self._reference_logprobs(micro), forward or self.engine
        logprobs_BT, entropy_BT = run(micro.nodes, micro.mask_BT, micro.temperatures_B)
        policy_BT = micro.mask_BT & ~micro.aux_B[:, None]
        aux_BT = micro.mask_BT & micro.aux_B[:, None]
        loss_sft = sft(logprobs_BT, aux_BT, micro.weights_B)
        loss, sums = loss_sft, {"loss_sft": loss_sft.item()}
        if self.algorithm is not None:
            loss_penalized, named = self.algorithm.loss(
                TokenBatch(
                    logprobs_BT,
                    micro.old_logprobs_BT,
                    policy_BT,
                    micro.advantages_B,
                    micro.weights_B,
                    micro.distilled_B,
                    reference_BT,
                    micro.advantages_BT,
                )
            )
            loss = loss_penalized + self.algorithm.sft_weight * loss_sft
            sums |= {"loss_penalized": loss_penalized.item(), **named}
        # Even if no token is selected, a poisoned loss must reach the weights.
        loss = loss + 0.0 * logprobs_BT.sum()
        sums["loss"] = loss.item()
        distilled_BT = policy_BT & micro.distilled_B[:, None]
        reused_BT = policy_BT & micro.reused_B[:, None]
        roles = {
            "all": policy_BT,
            "base": policy_BT & ~distilled_BT & ~reused_BT,
            "distilled": distilled_BT & ~reused_BT,
            "reused": reused_BT,
            "fresh": policy_BT & micro.fresh_BT,
        }
        sums |= drift_sums(logprobs_BT.detach(), micro.old_logprobs_BT, entropy_BT, roles)
        return loss, sums | packing_sums(micro, self.module.pack)

    def _reference_logprobs(self, micro: MicroBatch) -> Tensor | None:
        if not self.refers:
            return None
        model = self.module if self.reference is None else self.reference
        with torch.no_grad(), without_adapters(self.module):
            inputs = (micro.nodes, micro.mask_BT, micro.temperatures_B)
            logprobs_BT: Tensor = model(*inputs)[0]
            return logprobs_BT

    def _over_ranks(self, sums: dict[str, float]) -> dict[str, float]:
        if self.world == 1:
            return sums
        values = torch.tensor([sums[name] for name in sorted(sums)], dtype=torch.float64)
        values = values.to(self.device)
        torch.distributed.all_reduce(values)
        return dict(zip(sorted(sums), values.tolist(), strict=True))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, tensor) of every parameter, as in a model folder. Tied parameters appear
        once. Under ZeRO 3, every rank must exhaust the iterator."""
        return full_weights.tensors(full_weights.whole(self.module.lm))

    def published(self) -> tuple[Iterator[tuple[str, Tensor]], list[Shape]]:
        """Returns (tensors, shapes) for the actors: all weights, or only the adapters. Under ZeRO
        3, every rank must exhaust the tensors."""
        listed = full_weights.whole if self.adapters is None else full_weights.of_adapters
        stored = listed(self.module.lm)
        return full_weights.tensors(stored), full_weights.shapes(stored)

    def save_model(self, folder: Path, write: Write = write_tensors) -> None:
        """Writes a plain Hugging Face model folder, from rank 0. Collective under ZeRO 3."""
        full_weights.save_model(self.module.lm, folder, write if self.rank == 0 else None)

    def save_adapters(self, folder: Path, write: Write = write_tensors) -> None:
        """Writes the adapters in peft's format, from rank 0. Collective under ZeRO 3."""
        full_weights.save_adapters(self.module.lm, folder, write if self.rank == 0 else None)


def _longest(rows: Sequence[Row]) -> int:
    """Returns the length of the longest row, in tokens."""
    return max((len(row.token_ids) for row in rows), default=0)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error means that the GPU or the host ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)


def smaller_budget(budget: int, longest: int) -> int:
    """Halves the token budget, but keeps room for the longest sequence. Raises TrainingStopped if
    the budget cannot be lowered."""
    if budget <= longest:
        raise TrainingStopped(
            f"out of memory at the smallest micro-batch: {budget} tokens per micro-batch, longest "
            f"sequence {longest} tokens; use more ranks, learner.zero_stage=3, "
            "learner.offload=optimizer, learner.gradient_checkpointing=true or shorter contexts",
            cause="out_of_memory",
            tokens_per_micro_batch=budget,
            longest=longest,
        )
    return max(budget // 2, longest)
