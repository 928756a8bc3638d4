"""The loss of a micro-batch, and the metrics of a step. All trainers compute them here.

    micro-batch ─► forward ─► TokenBatch ─► an algorithm's loss ─► parts ─► their sum
                                                 └─ measures ─► sums of the step ─► metrics

The sums of micro-batches and of ranks can be added. Terms are in r3l.algorithms.losses; an
algorithm's `loss` adds them.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from r3l.algorithms.batch import Batch
from r3l.algorithms.losses import TokenBatch
from r3l.algorithms.queries import Answer, Query
from r3l.algorithms.rows import POLICY, Row
from r3l.errors import R3LError, UserError
from r3l.training.attention import Pack
from r3l.training.measures.drift import (
    clipped_share,
    drift_metrics,
    drift_sums,
    engine_metrics,
    reliance_metrics,
    reliance_sums,
)
from r3l.training.measures.part_gradients import PartGradients
from r3l.training.micro_batch import MicroBatch, packing_shares, packing_sums
from r3l.training.model import Scores

AnyBatch = TypeVar("AnyBatch", bound=Batch)
Sums = dict[str, float]
Loss = Callable[[TokenBatch], Mapping[str, Tensor]]
"""An algorithm's `loss`."""
Forward = Callable[..., Scores]
"""Called as r3l.training.model.PolicyModule."""
OUT_OF_MEMORY = (
    "out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC"
)  # fmt: skip


@dataclass(frozen=True)
class StepResult:
    """The result of one optimizer step on all ranks. `applied`: False if the loss or gradient was
    not finite. `out_of_memory`: how often the token budget was halved. `reliance`: each trained
    retry's Δ, as r3l.training.measures.drift.reliance_of_retries returns it."""

    applied: bool
    metrics: dict[str, float]
    out_of_memory: int = 0
    reliance: Mapping[tuple[str, str, int], float] = field(default_factory=dict)


class AnyTrainer(Protocol):
    """What every trainer offers. A trainer knows no algorithm: it gets rows and a loss."""

    def step(self, rows: Sequence[Row], loss: Loss) -> StepResult:
        """Makes one optimizer step on `rows`, whose weights are those of the whole step."""

    def answers(self, queries: Sequence[Query]) -> dict[Any, Answer]:
        """Answers queries, by their keys, in one pass without gradients. Raises UserError."""

    def answer(self, batch: AnyBatch, queries: Sequence[Query]) -> AnyBatch:
        """Returns the batch with the answers of its queries."""
        return batch.with_answers({**batch.answers, **self.answers(queries)}) if queries else batch


def step_loss(
    micro: MicroBatch,
    loss: Loss,
    forward: Forward,
    pack: Pack,
    gradients: PartGradients | None = None,
) -> tuple[Tensor, Sums]:
    """Returns (a micro-batch's loss, sums for metrics). `gradients`: collects the gradients of the
    parts. Raises UserError if `loss` does not return named scalars."""
    logprobs_BT, entropy_BT = forward(micro.nodes, micro.mask_BT, micro.temperatures_B)
    # Even if no token is selected, a poisoned loss must reach the weights.
    total = 0.0 * logprobs_BT.sum()
    sums: Sums = {"loss_sft": 0.0}
    if micro.input_tokens:
        batch = TokenBatch(
            logprobs_BT,
            micro.old_logprobs_BT,
            micro.mask_BT,
            micro.advantages_BT,
            micro.weights_BT,
            micro.distilled_B,
            micro.reference_BT,
            micro.losses,
            unmeasured_B=micro.unmeasured_B,
        )
        with blame(loss):
            parts = loss(batch)
        for part in _checked(parts, loss):
            total = total + part
        if gradients is not None:
            gradients.add(parts)
        sums |= batch.measured
    sums["loss"] = total.item()
    roles, own_BT = _roles(micro), logprobs_BT.detach()
    sums |= drift_sums(own_BT, micro.old_logprobs_BT, entropy_BT, roles)
    retries_B = micro.distilled_B.new_tensor([retry is not None for retry in micro.retries])
    retries_BT = roles["distilled"] & retries_B[:, None]
    sums |= reliance_sums(own_BT, micro.old_logprobs_BT, retries_BT, micro.retries)
    return total, sums | packing_sums(micro, pack)


def _roles(micro: MicroBatch) -> dict[str, Tensor]:
    """Returns the tokens of each role of r3l.training.measures.drift, bool [B, T]. Leaves out rows
    whose old log-probabilities are unknown."""
    policy_B = micro.distilled_B.new_tensor([name == POLICY for name in micro.losses])
    if micro.unmeasured_B is not None:
        policy_B &= ~micro.unmeasured_B
    policy_BT = micro.mask_BT & policy_B[:, None]
    distilled_BT = policy_BT & micro.distilled_B[:, None]
    reused_BT = policy_BT & micro.reused_B[:, None]
    return {
        "all": policy_BT,
        "base": policy_BT & ~distilled_BT & ~reused_BT,
        "distilled": distilled_BT & ~reused_BT,
        "reused": reused_BT,
        "fresh": policy_BT & micro.fresh_BT,
    }


def step_metrics(
    sums: Sums, *, norm: float, grad_clip: float, seconds: float, **more: float
) -> Sums:
    """Returns the metrics `learner/…` of a step. `sums`: added over micro-batches and ranks.
    `norm`: the gradient's norm before clipping. `more`: further metrics."""
    metrics = {
        **{name: value for name, value in sums.items() if not name.startswith("sum_")},
        **drift_metrics(sums),
        **engine_metrics(sums),
        **reliance_metrics(sums),
        **packing_shares(sums),
        "grad_norm": norm,
        "grad_clipped": clipped_share(norm, grad_clip),
        "threads": float(torch.get_num_threads()),
        "step_s": seconds,
        "trained_tokens": sums["sum_input_tokens"],
        "held_tokens": sums["sum_held_tokens"],
        "tokens_per_s": sums["sum_input_tokens"] / seconds,
        **more,
    }
    return {f"learner/{name}": value for name, value in metrics.items()}


def _checked(parts: Any, loss: Loss) -> list[Tensor]:
    """Returns the parts of a loss. Raises UserError unless they are named scalars."""
    rule = "return named parts, each a tensor of one number: {'policy': batch.total(terms_BT)}"
    if not isinstance(parts, Mapping) or not parts:
        raise UserError(f"{title_of(loss)} returned {parts!r:.80}; {rule}")
    for name, part in parts.items():
        if not isinstance(part, Tensor) or part.dim():
            got = (
                f"a tensor of {tuple(part.shape)}" if isinstance(part, Tensor) else f"{part!r:.80}"
            )
            raise UserError(f"{title_of(loss)} returned {got} as its part {name!r}; {rule}")
    return list(parts.values())


def title_of(method: Callable[..., Any]) -> str:
    """Returns the name by which errors call a method of an algorithm. The name includes the user's
    file, if the method is in one."""
    file, name = _file(method), getattr(method, "__name__", "loss")
    return f"algorithm {file}: {name}" if file else name


def _file(method: Callable[..., Any]) -> str:
    """Returns the path of the user's algorithm that a method belongs to, or ""."""
    name = str(getattr(getattr(method, "__self__", None), "name", ""))
    return name if ".py:" in name else ""


@contextmanager
def blame(method: Callable[..., Any]) -> Iterator[None]:
    """Turns an error of a user's algorithm into one line that names its file. `method`: the
    algorithm's method that the block calls. Leaves other errors unchanged: those of r3l's own
    algorithms, a lack of memory, and errors that are not the user's."""
    file = _file(method)
    try:
        yield
    except UserError as error:
        if not file:
            raise
        raise UserError(f"{title_of(method)}: {error}") from error
    except R3LError:
        raise
    except Exception as error:
        if not file or is_out_of_memory(error):
            raise
        path = Path(file.partition(".py:")[0] + ".py").expanduser().resolve()
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path]
        where = f" in line {lines[-1]}" if lines else ""
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{title_of(method)} raised {type(error).__name__}{where}: {reason}"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error means that the GPU or the host ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)
