"""The algorithms by name: R³L and the baselines as its paper ran them (ALGORITHM §7).

Each is a function of the configuration that returns an Algorithm. Adding one: write such a
function in a file of its own (on r3l.algorithms.algorithm), and give it a line in `REGISTRY`.
Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from r3l.algorithms import advantages
from r3l.algorithms.algorithm import (
    Algorithm,
    Exploration,
    Float64,
    Normalize,
    TokenBatch,
    TokenLoss,
    ratio_loss,
    score_loss,
)
from r3l.errors import UserError
from r3l.records import Bool, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from r3l.algorithms.settings import AlgorithmConfig

_KL = 0.01
_COMMON = frozenset({"name", "group_size"})
_RATIO = frozenset({"kl_coef", "clip_low", "clip_high"})


def get(config: AlgorithmConfig) -> Algorithm:
    """The algorithm the configuration names.

    Raises UserError (a ValueError) for an unknown name, for a setting that was given although
    the algorithm does not use it, and for a group size that does not split.
    """
    algorithm = _build(config)
    unused = sorted(config.model_fields_set - algorithm.uses)
    if unused:
        settings = ", ".join(sorted(algorithm.uses - {"name"}))
        raise UserError(
            f"{config.name!r} does not use {', '.join(unused)}; its settings are {settings}"
        )
    return algorithm


def uses(config: AlgorithmConfig) -> frozenset[str]:
    """Names of the settings the algorithm uses; all of them where it cannot be built."""
    try:
        return _build(config).uses
    except UserError:
        return frozenset(type(config).model_fields)


def _build(config: AlgorithmConfig) -> Algorithm:
    build = REGISTRY.get(config.name)
    if build is None:
        raise UserError(f"unknown algorithm {config.name!r}; known: {', '.join(sorted(REGISTRY))}")
    return build(config)


def r3l(config: AlgorithmConfig) -> Algorithm:
    """R³L and its ablations (ALGORITHM §2-6)."""
    exploration = Exploration(config.group_size)
    if config.reflect:
        half = _half(config)
        exploration = Exploration(
            half,
            half,
            guidance="reflection" if config.guidance else "none",
            from_start=config.from_start,
            pivot_shift=config.pivot_shift,
            constrained=config.constrained_reflection,
            aux=True,
            verified_requires_success=config.verified_requires_success,
        )
    amplified = partial(
        advantages.amplified,
        alpha=config.alpha,
        max_rule=config.max_rule,
        max_advantage=config.max_advantage,
    )
    return Algorithm(
        name="r3l",
        exploration=exploration,
        estimator=amplified if config.amplify else advantages.centered,
        token_loss=partial(score_loss, name="policy_gradient", normalize=config.normalize),
        normalize=config.normalize,
        credit=config.credit,
        sft_weight=config.sft_weight if config.reflect else 0.0,
        uses=frozenset(type(config).model_fields) - _RATIO - {"tau"},
    )


def grpo(config: AlgorithmConfig) -> Algorithm:
    """GRPO: standardised rewards, clip 0.2 on token ratios, k3 KL 0.01."""
    return Algorithm(
        name="grpo",
        exploration=Exploration(config.group_size),
        estimator=advantages.normalized,
        token_loss=_clip(config, config.normalize),
        normalize=config.normalize,
        kl_coef=_given(config.kl_coef, _KL),
        uses=_COMMON | _RATIO | {"normalize"},
    )


def dapo(config: AlgorithmConfig) -> Algorithm:
    """DAPO: GRPO with clip 0.2 / 0.28, a token mean and no groups without contrast."""
    return Algorithm(
        name="dapo",
        exploration=Exploration(config.group_size),
        estimator=advantages.normalized,
        selection=_contrast,
        token_loss=_clip(config, "token", high=0.28),
        normalize="token",
        kl_coef=_given(config.kl_coef, 0.0),
        uses=_COMMON | _RATIO,
    )


def gspo(config: AlgorithmConfig) -> Algorithm:
    """GSPO: GRPO with one ratio per sequence, clip 3e-4 / 4e-4."""
    return Algorithm(
        name="gspo",
        exploration=Exploration(config.group_size),
        estimator=advantages.normalized,
        token_loss=partial(
            ratio_loss,
            name="gspo",
            clip_low=_given(config.clip_low, 3e-4),
            clip_high=_given(config.clip_high, 4e-4),
            normalize="trajectory",
        ),
        kl_coef=_given(config.kl_coef, _KL),
        uses=_COMMON | _RATIO,
    )


def opmd(config: AlgorithmConfig) -> Algorithm:
    """OPMD: centred rewards, policy gradient / (1 + τ)."""
    return Algorithm(
        name="opmd",
        exploration=Exploration(config.group_size),
        estimator=advantages.centered,
        token_loss=partial(score_loss, name="opmd", tau=config.tau, normalize=config.normalize),
        normalize=config.normalize,
        uses=_COMMON | {"normalize", "tau"},
    )


def raft(config: AlgorithmConfig) -> Algorithm:
    """RAFT: log-likelihood of the full successes."""
    return Algorithm(
        name="raft",
        exploration=Exploration(config.group_size),
        estimator=advantages.successes,
        selection=_succeeded,
        token_loss=partial(score_loss, name="policy_gradient", normalize=config.normalize),
        normalize=config.normalize,
        uses=_COMMON | {"normalize"},
    )


def reflect_grpo(config: AlgorithmConfig) -> Algorithm:
    """GRPO over N/2 attempts and the retries, from step 0, of those that failed."""
    half = _half(config)
    exploration = Exploration(
        half,
        half,
        trigger="failure",
        from_start=True,
        constrained=config.constrained_reflection,
    )
    return Algorithm(
        name="reflect_grpo",
        exploration=exploration,
        estimator=advantages.normalized,
        token_loss=_clip(config, config.normalize),
        normalize=config.normalize,
        kl_coef=_given(config.kl_coef, _KL),
        uses=_COMMON | _RATIO | {"normalize", "constrained_reflection"},
    )


def critique_grpo(config: AlgorithmConfig) -> Algorithm:
    """GRPO where one refinement, made from a free-text critique, may replace a failure."""
    exploration = Exploration(
        config.group_size,
        config.group_size,
        trigger="failure",
        guidance="critique",
        from_start=True,
        constrained=False,
    )
    return Algorithm(
        name="critique_grpo",
        exploration=exploration,
        estimator=advantages.normalized,
        selection=_one_refinement,
        token_loss=partial(
            _refined, clipped=_clip(config, config.normalize), normalize=config.normalize
        ),
        normalize=config.normalize,
        kl_coef=_given(config.kl_coef, 0.0),
        uses=_COMMON | _RATIO | {"normalize"},
    )


REGISTRY: dict[str, Callable[[AlgorithmConfig], Algorithm]] = {
    "r3l": r3l,
    "grpo": grpo,
    "dapo": dapo,
    "gspo": gspo,
    "opmd": opmd,
    "raft": raft,
    "reflect_grpo": reflect_grpo,
    "critique_grpo": critique_grpo,
}


def _given(setting: float | None, published: float) -> float:
    """The setting, or the value the paper ran the algorithm with."""
    return published if setting is None else setting


def _clip(config: AlgorithmConfig, normalize: Normalize, high: float = 0.2) -> TokenLoss:
    return partial(
        ratio_loss,
        name="ppo_clip",
        clip_low=_given(config.clip_low, 0.2),
        clip_high=_given(config.clip_high, high),
        normalize=normalize,
    )


def _half(config: AlgorithmConfig) -> int:
    if config.group_size % 2:
        raise UserError(
            f"group_size {config.group_size}: {config.name!r} splits a group into as many "
            "attempts as retries; set an even number"
        )
    return config.group_size // 2


def _succeeded(rewards: Float64, trajectories: Sequence[Trajectory]) -> Bool:
    return rewards >= advantages.SUCCESS


def _contrast(rewards: Float64, trajectories: Sequence[Trajectory]) -> Bool:
    return np.full(len(rewards), rewards.min() < rewards.max(), dtype=np.bool_)


def _one_refinement(rewards: Float64, trajectories: Sequence[Trajectory]) -> Bool:
    """Keep the attempts, and in place of the failure it refined the best refinement that did
    better than that failure; among equals the first."""
    keep = np.array([one.role == "base" for one in trajectories], dtype=np.bool_)
    bases = {one.slot: index for index, one in enumerate(trajectories) if one.role == "base"}
    better = [
        index
        for index, one in enumerate(trajectories)
        if one.role == "distilled"
        and one.parent in bases
        and rewards[bases[one.parent]] < min(rewards[index], advantages.SUCCESS)
    ]
    if better:
        best = max(better, key=lambda index: (rewards[index], -trajectories[index].slot))
        keep[best], keep[bases[trajectories[best].parent]] = True, False
    return keep


def _refined(
    batch: TokenBatch, *, clipped: TokenLoss, normalize: Normalize
) -> tuple[Tensor, dict[str, float]]:
    """Attempts under the clipped ratio, refinements under π/(π + 0.1)."""
    refined_B1 = batch.is_distilled_B[:, None]
    loss, parts = clipped(replace(batch, mask_BT=batch.mask_BT & ~refined_B1))
    refinements = replace(batch, mask_BT=batch.mask_BT & refined_B1)
    refinement, _ = score_loss(refinements, name="shaped", gamma=0.1, normalize=normalize)
    return loss + refinement, parts
