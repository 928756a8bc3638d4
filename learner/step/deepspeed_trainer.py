"""Makes optimizer steps with DeepSpeed: rows in, updated weights and metrics out.

rank 0's rows ─► micro-batches of each rank ─► forward ─► loss ─► backward … ─► step
                                                                          │
              not finite, or out of memory, on any rank ──────────────────┴─► all ranks discard it

A step that must not be applied is poisoned: its loss is multiplied by NaN. The global gradient norm
is then NaN on every rank, and every rank discards the step without further communication.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learner.step import adapters, collectives, full_weights
from learner.step.adapters import published_apart, without_adapters
from learner.step.deepspeed_config import check_needs, deepspeed_config, learning_rate_share
from learner.step.full_weights import shard, shard_frozen
from learner.step.process_group import join_process_group
from learner.step.shared_rows import SharedRows, broadcast_facts
from learner.step.tensor_file import Shape, Write, write_tensors
from learner.watchdog import heartbeat
from r3l.algorithms.queries import Answer, Query, Weights
from r3l.algorithms.rows import Row
from r3l.errors import RestartNeeded, TrainingStopped
from r3l.run.process.cpu_time import cpu_seconds
from r3l.run.settings.learner import LearnerConfig
from r3l.training.answers import Answers, Found, Pass, found_in
from r3l.training.averaged_weights import DECAY, AveragedWeights
from r3l.training.measures.drift import reliance_of_retries
from r3l.training.measures.part_gradients import PartGradients
from r3l.training.micro_batch import MicroBatch, check_tokens, collate
from r3l.training.model import PolicyModule, Scores, load_model, resolve_dtype
from r3l.training.step_loss import (
    AnyBatch,
    AnyTrainer,
    Loss,
    StepResult,
    Sums,
    is_out_of_memory,
    step_loss,
    step_metrics,
)

log = logging.getLogger(__name__)
LARGEST = 1e6
"""If a step makes a larger weight, the run ends: products of a few of these overflow float32."""
LATER_S = 60.0  # collectives fail after the watchdogs, which log what each rank was doing


class StepLeft(Exception):
    """A step was abandoned; its gradients are incomplete and the weights unchanged."""


@dataclass(frozen=True)
class _Work:
    """What a step trains on. `rows`: those of rank 0. `longest`: length of the longest row, in
    tokens. `referenced`: whether a row has log-probabilities of a reference."""

    rows: Sequence[Row]
    loss: Loss
    longest: int
    referenced: bool


class DeepSpeedTrainer(AnyTrainer):
    """Trains one model folder with a DeepSpeed engine. Each rank has one trainer.

    `needs`: the weights that queries may name, as in the algorithm's `needs`. `reference`: folder
    of the reference model, by default `model`. With `learner.lora`, trains only adapters; the
    reference is then the model without adapters. `adapter`: folder of adapters to train further.
    `average_decay`: of the averaged weights.

    The attribute `adapters` describes the adapters if they are published without the base model,
    else it is None. `budget` is the number of tokens per micro-batch, lowered when memory runs out.
    """

    def __init__(
        self,
        model: Path,
        config: LearnerConfig,
        *,
        needs: Collection[Weights] = (),
        average_decay: float = DECAY,
        seed: int = 0,
        reference: Path | None = None,
        adapter: Path | None = None,
    ) -> None:
        import deepspeed

        torch.manual_seed(seed)
        join_process_group(config.hang_s + LATER_S)
        self.config = config
        self.budget = config.tokens_per_micro_batch
        self.dtype = resolve_dtype(config.dtype)
        bf16 = self.dtype == torch.bfloat16
        settings = deepspeed_config(config, bf16=bf16, gpu=torch.cuda.is_available())
        check_needs(needs, config, bf16=bf16)
        self.stage = int(settings["zero_optimization"]["stage"])
        load = partial(
            load_model,
            dtype=self.dtype,
            pack=config.pack,
            implementation=config.attention,
            compute=config.compute,
        )
        self.adapted = config.lora.rank > 0
        adapt = partial(adapters.prepare, lora=config.lora, base=model, saved=adapter)
        module = load(model, gradient_checkpointing=config.gradient_checkpointing, adapt=adapt)
        if self.stage == 3:  # before the reference is loaded: one whole model at a time
            shard(module, settings)
        self.adapters = published_apart(module.lm, model) if self.adapted else None
        self.reference: Any = None
        self.held: set[Weights] = {"current", *needs}
        if "reference" in needs and not self.adapted:
            frozen = load(reference or model).eval().requires_grad_(False)
            self.reference = shard_frozen(frozen, settings) if self.stage == 3 else frozen
        self.engine, self.optimizer, _, self.schedule = deepspeed.initialize(
            model=module,
            model_parameters=[p for p in module.parameters() if p.requires_grad],
            config=settings,
            lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: learning_rate_share(config, step)
            ),
        )
        self.device = self.engine.device
        self.average: AveragedWeights | None = None
        if "averaged" in needs:
            self.average = AveragedWeights(self.module.lm.named_parameters(), average_decay)
        self.parts = PartGradients(self.module.parameters()) if config.part_norms else None
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

    @property
    def vocabulary(self) -> int:
        """The number of tokens that the model knows."""
        return int(self.module.lm.config.get_text_config().vocab_size)

    def on_any_rank(self, fact: bool) -> bool:
        """Returns whether `fact` is true on any rank. Collective."""
        return collectives.any_of(fact, self.device) if self.world > 1 else fact

    def step(self, rows: Sequence[Row], loss: Loss) -> StepResult:
        """Makes one optimizer step on rank 0's `rows`, which are divided among all ranks. Ignores
        the rows that other ranks give. If memory runs out, repeats the step with a smaller token
        budget. Raises RestartNeeded if the step cannot be repeated. Raises TrainingStopped if the
        budget cannot be lowered. Raises StepLeft if `leaves` returns true on any rank. Raises
        UserError for a loss without parts."""
        began = time.monotonic()
        self.spent.clear()
        sums, halvings = self._accumulate(self._work(rows, loss))
        part_norms = self._part_norms()
        heartbeat("the optimizer's update")
        with self._timed("update_s"):
            applied, norm = self._apply()
            if applied and self.average is not None:
                self.average.update()
        metrics = step_metrics(
            sums,
            norm=norm,
            grad_clip=self.config.grad_clip,
            seconds=time.monotonic() - began,
            lr=float(self.optimizer.param_groups[0]["lr"]),
            tokens_per_micro_batch=float(self.budget),
            **part_norms,
            **self.spent,
        )
        return StepResult(applied, metrics, halvings, reliance_of_retries(sums))

    # ── queries ─────────────────────────────────────────────────────────────────────────

    def answer(self, batch: AnyBatch, queries: Sequence[Query]) -> AnyBatch:
        """Returns the batch with the answers of its queries, on rank 0. Collective."""
        return batch.with_answers({**batch.answers, **self.answers(queries)})

    def answers(self, queries: Sequence[Query]) -> dict[Hashable, Answer]:
        """Answers rank 0's queries in one pass without gradients, divided among all ranks. Returns
        the answers by the queries' keys. Ignores the queries that other ranks give. If memory runs
        out, repeats the pass with a smaller token budget. Raises UserError, and what `step` raises.
        Collective."""
        queries = queries if self.rank == 0 else ()
        check_tokens(
            ((f"query {query.key!r:.80}", query.token_ids) for query in queries), self.vocabulary
        )
        answers = Answers(queries, self.held, self.vocabulary)
        facts = broadcast_facts(
            {"longest": answers.longest, "passes": list(map(list, answers.passes))}, self.device
        )
        passes, longest = [(weights, top) for weights, top in facts["passes"]], facts["longest"]
        while passes and self.on_any_rank(self._out_of_memory(answers, passes, longest)):
            self.budget = smaller_budget(self.budget, longest)
            log.warning(
                "out of memory: answering queries with %d tokens per micro-batch", self.budget
            )
        return answers.read()

    def _out_of_memory(self, answers: Answers, passes: Sequence[Pass], longest: int) -> bool:
        """Computes this rank's part of rank 0's answers. Returns whether memory ran out."""
        lost = False
        for weights, top in passes:
            share = self._shared(answers.passes.get((weights, top), ()), longest)
            for turn, own in enumerate(self._each(share, longest)):
                self._beat("micro-batch of queries")
                found = None if lost else self._try_scores(weights, own, top, longest)
                lost = lost or found is None
                with self._exchanged(longest):
                    for rows, each in share.all_found(turn, top, found):
                        answers.keep(rows, each)
        return lost

    def _try_scores(
        self, weights: Weights, rows: Sequence[Row], top: int, longest: int
    ) -> Found | None:
        """Scores a micro-batch. Returns None if memory runs out. Raises RestartNeeded under ZeRO 3,
        where the other ranks wait in the forward."""
        try:
            with torch.no_grad():
                return found_in(rows, self._scores(weights, collate(rows, self.device), top))
        except (RuntimeError, MemoryError) as error:
            self._survive(error, longest, stage=3)
        return None

    def _scores(self, weights: Weights, micro: MicroBatch, top: int) -> Scores:
        module = self.module
        context: AbstractContextManager[None] = nullcontext()
        if weights == "reference" and self.adapted:
            context = without_adapters(module)
        elif weights == "reference":
            module = self.reference
        elif weights == "averaged":
            assert self.average is not None
            context = self.average.in_place()
        with context:
            scores: Scores = module(micro.nodes, micro.mask_BT, micro.temperatures_B, top)
            return scores

    def _shared(self, rows: Sequence[Row], longest: int) -> SharedRows:
        """Returns this rank's micro-batches of rank 0's rows. `longest`: length of the longest row.
        Raises RestartNeeded if memory runs out. Collective."""
        with self._exchanged(longest):
            return SharedRows(rows, self.budget, self.device, shared=self.module.pack != "rows")

    def _each(self, share: SharedRows, longest: int) -> Iterator[list[Row]]:
        """Yields this rank's micro-batches. Raises RestartNeeded if memory runs out while they are
        sent. Collective."""
        micro_batches = iter(share)
        for _ in range(len(share)):
            with self._exchanged(longest):
                rows = next(micro_batches)
            yield rows

    @contextmanager
    def _exchanged(self, longest: int) -> Iterator[None]:
        """Raises RestartNeeded if memory runs out in the block, in which other ranks wait for what
        this one sends. `longest`: length of the longest row."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            self._survive(error, longest, stage=0)

    def _beat(self, what: str) -> None:
        """Begins a micro-batch. Raises StepLeft if a rank was asked to end. Collective."""
        heartbeat(what)
        if self.on_any_rank(self.leaves()):
            raise StepLeft

    # ── the step ────────────────────────────────────────────────────────────────────────

    def _work(self, rows: Sequence[Row], loss: Loss) -> _Work:
        """Tells every rank what it must know of rank 0's rows. Collective."""
        facts = {
            "longest": max((len(row.token_ids) for row in rows), default=0),
            "referenced": any(row.reference is not None for row in rows),
        }
        return _Work(rows, loss, **broadcast_facts(facts, self.device))

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

    def _accumulate(self, work: _Work) -> tuple[Sums, int]:
        """Repeats `_attempt` until memory suffices. Returns (sums of the last attempt, how often
        the token budget was halved)."""
        halvings, sums = 0, self._attempt(work)
        while sums.pop("out_of_memory"):
            if self._apply()[0]:  # although a rank has poisoned the gradients
                raise RestartNeeded(
                    "DeepSpeed applied a step that had run out of memory", cause="out_of_memory"
                )
            self.budget = smaller_budget(self.budget, work.longest)
            log.warning("out of memory: continuing with %d tokens per micro-batch", self.budget)
            sums, halvings = self._attempt(work), halvings + 1
        return sums, halvings

    def _attempt(self, work: _Work) -> Sums:
        """Accumulates the gradients of all micro-batches. Returns sums over all ranks, for metrics.
        If memory runs out, continues with empty, poisoned micro-batches."""
        mine = self._shared(work.rows, work.longest)
        sums: Sums = {}
        lost = False
        if self.parts is not None:
            self.parts.sums.clear()
        for number, own in enumerate(self._each(mine, work.longest)):
            self._beat(f"micro-batch {number + 1} of {len(mine)}")
            self.engine.set_gradient_accumulation_boundary(number == len(mine) - 1)
            added = None if lost else self._try_micro_batch(own, work)
            if added is None:
                lost = True
                added = self._micro_batch([], work, poisoned=True)  # collectives need all ranks
            for name, value in added.items():
                sums[name] = sums.get(name, 0.0) + value
        sums |= {"out_of_memory": float(lost), "cpu_s": cpu_seconds()}
        return collectives.add(sums, self.device) if self.world > 1 else sums

    def _try_micro_batch(self, rows: Sequence[Row], work: _Work) -> Sums | None:
        """Returns a micro-batch's sums. If memory runs out, returns None under ZeRO 0 and 1, and
        raises RestartNeeded under ZeRO 2 and 3."""
        try:
            return self._micro_batch(rows, work)
        except (RuntimeError, MemoryError) as error:
            # Backward ended in the middle of its reductions: the engine's state is undefined.
            self._survive(error, work.longest, stage=2)
        return None

    def _survive(self, error: RuntimeError | MemoryError, longest: int, *, stage: int) -> None:
        """Raises `error` unless memory ran out. Raises RestartNeeded under ZeRO stage `stage` or
        higher. `longest`: length of the longest row."""
        if not is_out_of_memory(error):
            raise error
        log.warning("rank %d: %s", self.rank, str(error).splitlines()[0])
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.stage >= stage:
            budget = smaller_budget(self.budget, longest)
            when = f"under ZeRO stage {self.stage}" if stage else "while ranks exchanged rows"
            raise RestartNeeded(
                f"out of memory with {self.budget} tokens per micro-batch {when}; the learner "
                f"restarts with {budget} tokens",
                cause="out_of_memory",
                tokens_per_micro_batch=budget,
            )

    def _micro_batch(self, rows: Sequence[Row], work: _Work, *, poisoned: bool = False) -> Sums:
        with self._timed("forward_s"):
            micro = collate(rows, self.device, referenced=work.referenced)
            if self.parts is not None:  # not by the engine, which takes each backward for its own
                step_loss(micro, work.loss, self.module, self.module.pack, self.parts)
            loss, sums = self.losses(micro, work.loss)
        if poisoned or not math.isfinite(sums["loss"]):
            loss = loss * math.nan
        with self._timed("backward_s"):
            # DeepSpeed averages gradients over ranks; the rows' weights are those of the whole step
            self.engine.backward(loss * self.world)
        return sums

    def losses(self, micro: MicroBatch, loss: Loss) -> tuple[Tensor, Sums]:
        """Returns (a micro-batch's loss, sums for metrics)."""
        return step_loss(micro, loss, self.engine, self.module.pack)

    def _part_norms(self) -> Sums:
        """Returns the gradient norm of each part of the loss, if wanted. Collective."""
        if self.parts is None:
            return {}
        if self.world > 1:
            for name in collectives.names_of_all(self.parts.sums, self.device):
                for gradient in self.parts.of(name):
                    torch.distributed.all_reduce(gradient)
        return self.parts.norms()

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

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, tensor) of every parameter, as in a model folder. Tied parameters appear
        once. Under ZeRO 3, every rank must exhaust the iterator."""
        return full_weights.tensors(full_weights.whole(self.module.lm))

    def published_weights(self) -> tuple[Iterator[tuple[str, Tensor]], list[Shape]]:
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
