"""Token losses: what the optimizer minimises, given log-probabilities, masks and advantages.

Axes: B trajectories (rows), T token positions. `logprobs_BT[i, t]` is the natural log of the
probability of token t of row i under the policy being trained, `old_` under the policy that
sampled it, `ref_` under the reference; `mask_BT` bool, True on the tokens that are trained;
|τ_i| = Σ_t mask_it. Values where the mask is False are never read (they may be NaN) and receive
a gradient of exactly 0. Half-precision log-probabilities are lifted to float32.

Every loss is a weighted sum over its rows divided by a denominator (`_reduce`):

    normalize="trajectory":  Σ_i w_i (1/|τ_i|) Σ_t term_it / denominator     natural: B
    normalize="token":       Σ_i w_i Σ_t term_it / denominator               natural: Σ_i |τ_i|

so cutting a batch into micro-batches or ranks, each given the whole batch's denominator, and
adding the results gives the loss of the whole batch. A row must not be cut. A row with an empty
mask adds 0 and counts in the natural B.

w_i = `weights_B[i]`, 1 where none are given: the importance weight of the row's group, which a
sampler with preferences drew more or less often than another (buffer.groups.samplers.Pick). The
denominator leaves it out, so that the expectation over draws is that of drawing without preference.

Raises ValueError for shapes that do not fit, a mask that is not bool and a bad option.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Normalize = Literal["trajectory", "token"]

_MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped here (e^20 ≈ 5e8) so that no exponential overflows."""


def policy_gradient(
    logprobs_BT: Tensor,
    mask_BT: Tensor,
    advantages_B: Tensor,
    *,
    normalize: Normalize = "trajectory",
    denominator: float | None = None,
    weights_B: Tensor | None = None,
) -> Tensor:
    """term = −Â_i · log π(y_it): R³L's objective (ALGORITHM §5); scalar.

    With Â = 1 for the kept rows it is RAFT's log-likelihood.
    """
    logprobs_BT = _selected(logprobs_BT, mask_BT)
    terms_BT = -_column(advantages_B, logprobs_BT) * logprobs_BT
    return _reduce(terms_BT, mask_BT, normalize, denominator, weights_B)


def opmd(
    logprobs_BT: Tensor,
    mask_BT: Tensor,
    advantages_B: Tensor,
    *,
    tau: float = 1.0,
    normalize: Normalize = "trajectory",
    denominator: float | None = None,
    weights_B: Tensor | None = None,
) -> Tensor:
    """term = −Â_i · log π(y_it) / (1 + τ) (OPMD, ALGORITHM §7); scalar."""
    if not tau > -1:
        raise ValueError(f"tau is {tau}; 1 + tau must be positive")
    loss = policy_gradient(
        logprobs_BT,
        mask_BT,
        advantages_B,
        normalize=normalize,
        denominator=denominator,
        weights_B=weights_B,
    )
    return loss / (1.0 + tau)


def ppo_clip(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    mask_BT: Tensor,
    advantages_B: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    normalize: Normalize = "trajectory",
    denominator: float | None = None,
    weights_B: Tensor | None = None,
) -> Tensor:
    """term = −min(r·Â, clip(r, 1 − clip_low, 1 + clip_high)·Â), r_it = π/π_old per token; scalar.

    GRPO clips at 0.2, DAPO at 0.2 / 0.28 (ALGORITHM §7).
    """
    ratio_BT = _token_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    terms_BT = _clipped(ratio_BT, _column(advantages_B, ratio_BT), clip_low, clip_high)
    return _reduce(terms_BT, mask_BT, normalize, denominator, weights_B)


def gspo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    mask_BT: Tensor,
    advantages_B: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    normalize: Normalize = "trajectory",
    denominator: float | None = None,
    weights_B: Tensor | None = None,
) -> Tensor:
    """As `ppo_clip` with one ratio per sequence, s_i = exp((1/|τ_i|) Σ_t log π/π_old) (GSPO).

    With normalize="trajectory" a row adds −min(s_i·Â_i, clip(s_i)·Â_i); scalar.
    """
    ratio_BT = _sequence_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    terms_BT = _clipped(ratio_BT, _column(advantages_B, ratio_BT), clip_low, clip_high)
    return _reduce(terms_BT, mask_BT, normalize, denominator, weights_B)


def shaped(
    logprobs_BT: Tensor,
    mask_BT: Tensor,
    advantages_B: Tensor,
    *,
    gamma: float = 0.1,
    normalize: Normalize = "trajectory",
    denominator: float | None = None,
    weights_B: Tensor | None = None,
) -> Tensor:
    """term = −Â_i · π/(π + γ), for refinements the policy did not sample unaided
    (Critique-GRPO, ALGORITHM §7); scalar."""
    if not gamma > 0:
        raise ValueError(f"gamma is {gamma}; it must be positive")
    probs_BT = _selected(logprobs_BT, mask_BT).exp()
    terms_BT = -_column(advantages_B, probs_BT) * probs_BT / (probs_BT + gamma)
    return _reduce(terms_BT, mask_BT, normalize, denominator, weights_B)


def sft(
    logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    normalize: Normalize = "token",
    denominator: float | None = None,
    weights_B: Tensor | None = None,
) -> Tensor:
    """term = −log π(y_it): L_SFT, the mean token negative log-likelihood of the auxiliary
    samples in nats (ALGORITHM §5); scalar."""
    return _reduce(-_selected(logprobs_BT, mask_BT), mask_BT, normalize, denominator, weights_B)


def k3_kl(
    logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    normalize: Normalize = "trajectory",
    denominator: float | None = None,
    weights_B: Tensor | None = None,
) -> Tensor:
    """term = π_ref/π − log(π_ref/π) − 1 ≥ 0, the k3 estimate of KL(π ‖ π_ref) in nats; scalar."""
    log_ratio_BT = _log_ratio(ref_logprobs_BT, logprobs_BT, mask_BT)
    terms_BT = log_ratio_BT.exp() - log_ratio_BT - 1.0
    return _reduce(terms_BT, mask_BT, normalize, denominator, weights_B)


def clip_fraction(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    mask_BT: Tensor,
    advantages_B: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    sequence: bool = False,
    normalize: Normalize = "trajectory",
    denominator: float | None = None,
) -> Tensor:
    """Share of tokens whose gradient the clip removes, reduced like the loss it belongs to."""
    ratio = _sequence_ratio if sequence else _token_ratio
    ratio_BT = ratio(logprobs_BT.detach(), old_logprobs_BT, mask_BT)
    advantages_B1 = _column(advantages_B, ratio_BT)
    clipped_BT = ((advantages_B1 > 0) & (ratio_BT > 1.0 + clip_high)) | (
        (advantages_B1 < 0) & (ratio_BT < 1.0 - clip_low)
    )
    return _reduce(clipped_BT.to(ratio_BT.dtype), mask_BT, normalize, denominator)


def _reduce(
    terms_BT: Tensor,
    mask_BT: Tensor,
    normalize: Normalize,
    denominator: float | None,
    weights_B: Tensor | None = None,
) -> Tensor:
    terms_BT = terms_BT.masked_fill(~mask_BT, 0.0)
    if weights_B is not None:
        terms_BT = terms_BT * _column(weights_B, terms_BT, "weights")
    if normalize == "trajectory":
        total = (terms_BT.sum(dim=1) / _lengths(mask_BT)).sum()
        natural = float(len(mask_BT))
    elif normalize == "token":
        total = terms_BT.sum()
        natural = float(mask_BT.sum()) if denominator is None else 0.0
    else:
        raise ValueError(f"normalize is {normalize!r}; it must be 'trajectory' or 'token'")
    if denominator is None:
        denominator = max(natural, 1.0)  # an empty batch has loss 0
    if not denominator > 0:
        raise ValueError(f"denominator is {denominator}; it must be positive")
    return total / denominator


def _clipped(ratio_BT: Tensor, advantages_B1: Tensor, low: float, high: float) -> Tensor:
    if not (0 <= low < 1 and high >= 0):
        raise ValueError(f"clip_low {low} must be in [0, 1) and clip_high {high} >= 0")
    clipped_BT = ratio_BT.clamp(1.0 - low, 1.0 + high)
    return -torch.minimum(ratio_BT * advantages_B1, clipped_BT * advantages_B1)


def _token_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return _log_ratio(logprobs_BT, old_logprobs_BT, mask_BT).exp()


def _sequence_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    log_ratio_BT = _selected(logprobs_BT, mask_BT) - _selected(old_logprobs_BT, mask_BT)
    mean_B = log_ratio_BT.sum(dim=1) / _lengths(mask_BT)
    ratio_B = mean_B.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    return ratio_B[:, None].expand_as(mask_BT)


def _log_ratio(logprobs_BT: Tensor, other_BT: Tensor, mask_BT: Tensor) -> Tensor:
    log_ratio_BT = _selected(logprobs_BT, mask_BT) - _selected(other_BT, mask_BT)
    return log_ratio_BT.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def _lengths(mask_BT: Tensor) -> Tensor:
    """|τ_i| [B], at least 1."""
    return mask_BT.sum(dim=1).clamp(min=1)


def _selected(logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`logprobs_BT` with 0 wherever the mask is False."""
    if mask_BT.dtype != torch.bool or mask_BT.ndim != 2:
        raise ValueError(f"mask is {mask_BT.dtype}{tuple(mask_BT.shape)}; it must be bool [B, T]")
    if logprobs_BT.shape != mask_BT.shape:
        shapes = f"{tuple(logprobs_BT.shape)} and {tuple(mask_BT.shape)}"
        raise ValueError(f"log-probabilities and mask have shapes {shapes}; they must be equal")
    if logprobs_BT.dtype in (torch.bfloat16, torch.float16):
        logprobs_BT = logprobs_BT.float()
    return logprobs_BT.masked_fill(~mask_BT, 0.0)


def _column(values_B: Tensor, like_BT: Tensor, called: str = "advantages") -> Tensor:
    if values_B.shape != like_BT.shape[:1]:
        shapes = f"{tuple(values_B.shape)} for {len(like_BT)} rows"
        raise ValueError(f"{called} have shape {shapes}; they must be [B]")
    return values_B.to(like_BT.dtype)[:, None]
