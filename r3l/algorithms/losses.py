"""Computes the loss of each token. Algorithm.loss weighs and adds the terms.

Axes: B trajectories (rows), T token positions. A loss function maps a TokenBatch to terms [B, T].
The loss of a batch is the weighted sum of the terms of trained tokens,

    L = Σ_i Σ_t w_it · mask_it · term_it,

with w_it from r3l.algorithms.rows. The losses of micro-batches and ranks add up to the loss of the
whole batch.

Â_it is the advantage of a token, π the policy being trained, π_old the policy that sampled the
token, π_ref the reference model. All logarithms are natural. This module does not import torch, so
that settings load without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from r3l.algorithms.rows import IMITATION, POLICY, Row
from r3l.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Limit of log-ratios (e^20 ≈ 5e8), so that exponentials do not overflow."""


@dataclass(frozen=True)
class TokenBatch:
    """A micro-batch, with log π, log π_old and log π_ref. `mask_BT`: True on trained tokens.
    `weights_BT`: w_it. `distilled_B`: rows whose log π_old belongs to another context.
    `unmeasured_B`: rows whose log π_old is unknown; None if there are none. `losses`: the name of
    each row's loss, B names; () if all rows belong to the policy's loss. `measured`: sums for
    metrics, which `measure` adds to."""

    logprobs_BT: Tensor
    old_logprobs_BT: Tensor
    mask_BT: Tensor
    advantages_BT: Tensor
    weights_BT: Tensor
    distilled_B: Tensor
    reference_BT: Tensor | None = None
    losses: tuple[str, ...] = ()
    measured: dict[str, float] = field(default_factory=dict)
    unmeasured_B: Tensor | None = None

    @classmethod
    def of_rows(cls, rows: Sequence[Row], logprobs_BT: Tensor) -> TokenBatch:
        """Makes a batch for a training loop of your own: the rows, padded on the right.

        `logprobs_BT`: [b, t] is log π of token t of row b given the tokens before it, in the
        distribution ∝ exp(logits / row.temperature). Padding and tokens that are not trained may
        have any value. Raises UserError if its shape does not fit the rows.
        """
        shape, longest = tuple(logprobs_BT.shape), max((len(r.token_ids) for r in rows), default=0)
        if len(shape) != 2 or shape[0] != len(rows) or shape[1] < longest:
            raise UserError(
                f"log-probabilities of shape {shape} for {len(rows)} rows of up to {longest} "
                "tokens; give one for each token of each row, padded on the right"
            )

        def padded(name: str, empty: float = 0.0) -> Tensor:
            values = np.full(shape, empty, np.float32)
            for place, row in enumerate(rows):
                if (held := getattr(row, name)) is not None:
                    values[place, : len(held)] = held
            return logprobs_BT.detach().new_tensor(values)

        def each(marks: list[bool]) -> Tensor:
            return logprobs_BT.detach().new_tensor(marks).bool()

        return cls(
            logprobs_BT,
            old_logprobs_BT=padded("old_logprobs"),
            mask_BT=padded("mask").bool(),
            advantages_BT=padded("advantages"),
            weights_BT=padded("weights"),
            distilled_B=each([row.distilled for row in rows]),
            reference_BT=padded("reference", np.nan)
            if any(row.reference is not None for row in rows)
            else None,
            losses=tuple(row.loss for row in rows),
            unmeasured_B=each([not row.measured for row in rows]),
        )

    def masked(self) -> TokenBatch:
        """Sets log-probabilities outside the mask to 0, since they may be NaN. Converts half
        precision to float32. Raises ValueError if shapes do not fit."""
        if self.logprobs_BT.shape != self.mask_BT.shape:
            shapes = f"{tuple(self.logprobs_BT.shape)} and {tuple(self.mask_BT.shape)}"
            raise ValueError(f"log-probabilities and mask have shapes {shapes}; make them equal")
        for name in ("advantages_BT", "weights_BT"):
            if (shape := tuple(getattr(self, name).shape)) != self.mask_BT.shape:
                wanted = tuple(self.mask_BT.shape)
                raise ValueError(f"{name} has shape {shape}; the mask has {wanted}")
        reference_BT = self.reference_BT
        return replace(
            self,
            logprobs_BT=_masked(self.logprobs_BT, self.mask_BT),
            old_logprobs_BT=_masked(self.old_logprobs_BT, self.mask_BT),
            reference_BT=None if reference_BT is None else _masked(reference_BT, self.mask_BT),
        )

    def of(self, loss: str) -> TokenBatch:
        """Returns the batch with only the rows of one loss in the mask."""
        if not self.losses:
            return self if loss == POLICY else replace(self, mask_BT=self.mask_BT & False)
        own = [name == loss for name in self.losses]
        own_B = self.mask_BT.new_tensor(own)
        return replace(self, mask_BT=self.mask_BT & own_B[:, None])

    def with_unit_ratios(self) -> TokenBatch:
        """Sets π_old = π in distilled rows, whose π_old was measured with guidance that the row
        does not contain, and in rows whose π_old is unknown."""
        own_BT, unit_B = self.logprobs_BT.detach(), self.distilled_B
        if self.unmeasured_B is not None:
            unit_B = unit_B | self.unmeasured_B
        old_BT = own_BT.where(unit_B[:, None], self.old_logprobs_BT)
        return replace(self, old_logprobs_BT=old_BT)

    @property
    def advantages(self) -> Tensor:
        """Returns the token advantages [B, T] in the precision of the log-probabilities."""
        return self.advantages_BT.to(self.logprobs_BT.dtype)

    def total(self, terms_BT: Tensor) -> Tensor:
        """Computes the scalar Σ_i Σ_t w_it · mask_it · term_it."""
        weights_BT = self.weights_BT.to(terms_BT.dtype)
        return (terms_BT.masked_fill(~self.mask_BT, 0.0) * weights_BT).sum()

    def measure(self, name: str, amount: Tensor | float) -> None:
        """Adds a scalar to a metric `learner/NAME` of the step. A step's metric is the sum over its
        micro-batches."""
        self.measured[name] = self.measured.get(name, 0.0) + float(amount)


Terms = tuple["Tensor", dict[str, "Tensor"]]
"""The terms [B, T] of a loss, and measurements of each token, [B, T], keyed by name."""

TokenLoss = Callable[[TokenBatch], Terms]

RatioCorrection = Literal[
    "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
]


def policy_gradient(batch: TokenBatch, *, scale: float = 1.0) -> Terms:
    """term = −scale · Â_i · log π(y_it), as in R³L, RAFT (Â = 1) and OPMD
    (scale = 1 / (1 + tau))."""
    return -scale * batch.advantages * batch.logprobs_BT, {}


def ppo_clip(batch: TokenBatch, *, clip_low: float, clip_high: float) -> Terms:
    """term = −min(r·Â_i, clip(r, 1 − clip_low, 1 + clip_high)·Â_i) with one ratio
    r_it = π/π_old for each token (PPO, GRPO, DAPO).

    Measures `clip_fraction`: 1 for a token whose gradient the clip removes, else 0.
    """
    return _clipped(_token_ratio(batch), batch.advantages, clip_low, clip_high)


def importance(batch: TokenBatch) -> Terms:
    """term = −r·Â_i with r_it = π/π_old for each token, not clipped."""
    return -_token_ratio(batch) * batch.advantages, {}


def gspo(batch: TokenBatch, *, clip_low: float, clip_high: float) -> Terms:
    """Like `ppo_clip`, with one ratio for each sequence: s_i = exp((1/|τ_i|) Σ_t log π/π_old),
    where |τ_i| counts trained tokens (GSPO, arXiv 2507.18071)."""
    lengths_B = batch.mask_BT.sum(dim=1).clamp(min=1)
    mean_B = (batch.logprobs_BT - batch.old_logprobs_BT).sum(dim=1) / lengths_B
    ratio_B = mean_B.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    ratio_BT = ratio_B[:, None].expand_as(batch.mask_BT)
    return _clipped(ratio_BT, batch.advantages, clip_low, clip_high)


def critique_grpo(batch: TokenBatch, *, attempts: TokenLoss, gamma: float) -> Terms:
    """Base attempts: the terms that `attempts` computes. Refinements (Critique-GRPO,
    arXiv 2506.03106): term = −Â_i · π/(π + γ)."""
    distilled_B1 = batch.distilled_B[:, None]
    terms_BT, measured = attempts(batch)
    probs_BT = batch.logprobs_BT.exp()
    shaped_BT = -batch.advantages * probs_BT / (probs_BT + gamma)
    measured = {name: values.masked_fill(distilled_B1, 0.0) for name, values in measured.items()}
    return shaped_BT.where(distilled_B1, terms_BT), measured


def ratio_corrected(
    batch: TokenBatch, *, loss: TokenLoss, rule: RatioCorrection, low: float, high: float
) -> Terms:
    """Multiplies the terms of `loss` by w_t (r3l.algorithms.shared.ratio_correction). Measures
    `ratio_correction_weight`: w_t; `ratio_correction_dropped`: 1 if w_t is 0, else 0."""
    own_BT = batch.logprobs_BT.detach()
    weights_BT = _correction_weights(own_BT - batch.old_logprobs_BT, rule, low, high)
    terms_BT, measured = loss(replace(batch, old_logprobs_BT=own_BT))
    dropped_BT = (weights_BT == 0).to(weights_BT.dtype)
    measured |= {"ratio_correction_dropped": dropped_BT, "ratio_correction_weight": weights_BT}
    return weights_BT * terms_BT, measured


def _correction_weights(
    log_ratio_BT: Tensor, rule: RatioCorrection, low: float, high: float
) -> Tensor:
    """Computes w_t of every token. The given log-ratios must be 0 outside the mask."""
    if rule.startswith("sequence"):
        log_ratio_BT = log_ratio_BT.sum(dim=1, keepdim=True).expand_as(log_ratio_BT)
    ratio_BT = log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if rule.endswith("truncate"):
        return ratio_BT.clamp(max=high)
    inside_BT = ratio_BT <= high
    if rule == "token_mask":
        inside_BT &= ratio_BT >= low
    return ratio_BT.masked_fill(~inside_BT, 0.0)


def k2_kl(batch: TokenBatch) -> Tensor:
    """term = ½ (log π − log π_ref)² ≥ 0, the k2 estimate of KL(π ‖ π_ref) in nats."""
    return 0.5 * _reference_ratio(batch).square()


def k3_kl(batch: TokenBatch) -> Tensor:
    """term = π_ref/π − log(π_ref/π) − 1 ≥ 0, the k3 estimate of KL(π ‖ π_ref) in nats."""
    log_ratio_BT = _reference_ratio(batch)
    return log_ratio_BT.exp() - log_ratio_BT - 1.0


def sft(batch: TokenBatch) -> Terms:
    """term = −log π(y_it) in nats: supervised learning."""
    return -batch.logprobs_BT, {}


def imitation_loss(batch: TokenBatch) -> dict[str, Tensor]:
    """The loss of supervised rows alone, as in a warm-up. Measures `loss_sft`."""
    own = batch.of(IMITATION).masked()
    total = own.total(sft(own)[0])
    batch.measure("loss_sft", total.detach())
    return {"sft": total}


def _clipped(ratio_BT: Tensor, advantages: Tensor, low: float, high: float) -> Terms:
    inside_BT = ratio_BT.clamp(1.0 - low, 1.0 + high)
    terms_BT = -(ratio_BT * advantages).minimum(inside_BT * advantages)
    silent_BT = ((advantages > 0) & (ratio_BT > 1.0 + high)) | (
        (advantages < 0) & (ratio_BT < 1.0 - low)
    )
    return terms_BT, {"clip_fraction": silent_BT.to(ratio_BT.dtype)}


def _token_ratio(batch: TokenBatch) -> Tensor:
    log_ratio_BT = batch.logprobs_BT - batch.old_logprobs_BT
    return log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _reference_ratio(batch: TokenBatch) -> Tensor:
    """Computes log(π_ref/π)."""
    if batch.reference_BT is None:
        raise ValueError(
            "the KL needs the reference model's log-probabilities; before algorithm.rows, call "
            "batch = trainer.answer(batch, algorithm.queries(batch))"
        )
    log_ratio_BT = batch.reference_BT - batch.logprobs_BT
    return log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _masked(logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    if logprobs_BT.dtype.itemsize < 4:
        logprobs_BT = logprobs_BT.float()
    return logprobs_BT.masked_fill(~mask_BT, 0.0)
