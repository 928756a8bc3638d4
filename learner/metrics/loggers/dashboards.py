"""Defines TensorBoard's "Custom Scalars" charts and the settings on its "HParams" page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Charts = dict[str, tuple[str, ...]]

DASHBOARDS: dict[str, Charts] = {
    "Learning": {
        "success on held-out tasks": ("eval/success",),
        "success of training attempts": ("group/success_base", "group/success_retry"),
        "reward": ("group/reward_mean", "group/reward_max"),
        "loss": ("learner/loss_policy", "learner/loss_sft"),
        "entropy, nats a token": ("learner/entropy_base", "learner/entropy_distilled"),
        "gradient norm": ("learner/grad_norm",),
    },
    "Groups and retries": {
        "retries: called for, better, verified": (
            "group/trigger_rate",
            "group/improvement_rate",
            "group/verified_rate",
        ),
        "what guided retries earn over further attempts": ("group/guidance_gain",),
        "reflections that could be read": ("group/reflection_valid",),
        "pivot, share of the attempt": ("group/pivot_relative",),
        "groups without contrast": ("group/no_contrast",),
        "attempts not trained on": ("group/dropped",),
        "length of an attempt, tokens": ("group/length_mean", "group/length_p95"),
    },
    "Staleness": {
        "age of groups, versions": ("staleness/mean", "staleness/max"),
        "time of each phase, seconds": (
            "staleness/generation_s",
            "staleness/reflection_s",
            "staleness/retry_s",
            "staleness/queue_s",
        ),
        "KL to the sampling policy": (
            "learner/behaviour_kl_base",
            "learner/behaviour_kl_distilled",
        ),
        "gap of engine and learner at equal weights, nats a token": ("learner/engine_gap",),
    },
    "Throughput": {
        "sampled tokens/s": ("actor/tokens_per_s",),
        "trained tokens/s": ("learner/tokens_per_s",),
        "idle share: who waits": ("learner/idle_share", "actor/idle_share"),
        "seconds of a step": ("learner/step_s", "learner/wait_s", "learner/pack_s"),
        "prompt tokens in the prefix cache": ("actor/prefix_hit",),
        "weights, bytes": ("weights/full_bytes", "weights/patch_bytes"),
    },
}

COMPARED = (
    "algorithm.name", "learner.lr", "model", "env.name", "seed", "actor.temperature",
    "buffer.max_staleness", "buffer.sampler.name", "learner.steps", "learner.groups_per_step",
    "learner.schedule",
)  # fmt: skip
RESULT = "eval/success"
"""The metric that the "HParams" page shows for each run, with its last value."""


def layout() -> dict[str, dict[str, list[Any]]]:
    """Convert DASHBOARDS for SummaryWriter.add_custom_scalars. TensorBoard matches tags by
    their beginnings, unless they have an end."""
    return {
        category: {
            title: ["Multiline", [f"{tag}$" for tag in tags]] for title, tags in charts.items()
        }
        for category, charts in DASHBOARDS.items()
    }


def hyperparameters(settings: Mapping[str, str | float | bool]) -> dict[str, str | float | bool]:
    """Select the settings in COMPARED, then all of the algorithm, keyed by full name."""
    names = (*COMPARED, *(name for name in settings if name.startswith("algorithm.")))
    return {name: settings[name] for name in names if name in settings}
