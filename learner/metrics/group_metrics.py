"""Figures of one step's groups, by the prefixes people watch in TensorBoard.

Scalars are plain floats; a figure that has no data this step is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from buffer import BufferStats
from r3l.algorithms.advantages import SUCCESS
from r3l.records import Group, Trajectory
from r3l.rollout.group import verified

Figures = dict[str, float]
REMEMBERED = 1000
GONE_S = 30.0  # without a heartbeat, which come every other second, until an actor counts as gone


def group_figures(groups: Sequence[Group], *, requires_success: bool = True) -> Figures:
    """`group/`: rewards, success by role, what reflections led to, pivots, contrast, tokens.

    `trigger_rate`: share of the reflections that called for a retry, also where it failed;
    `requires_success`: what a correction is verified by (r3l.rollout.group.verified).
    """
    bases = [t for g in groups for t in g.trajectories if t.role == "base"]
    distilled = [t for g in groups for t in g.trajectories if t.role == "distilled"]
    asked = [r for g in groups for r in g.results if r.reflection is not None]
    pairs = [pair for g in groups for pair in _corrections(g)]
    rewards = [g.rewards for g in groups]
    figures = {
        "group/reward_mean": _mean(t.reward for t in bases + distilled),
        "group/reward_max": _mean(r.max() for r in rewards),
        "group/reward_std": _mean(r.std() for r in rewards),
        "group/success_base": _mean(t.reward >= SUCCESS for t in bases),
        "group/success_retry": _mean(t.reward >= SUCCESS for t in distilled),
        "group/trigger_rate": _mean(r.status != "not_triggered" for r in asked),
        "group/reflection_valid": _mean(not r.reflection.cause for r in asked if r.reflection),
        "group/improvement_rate": _mean(b.reward < d.reward for b, d in pairs),
        "group/verified_rate": _mean(
            verified(b, d, requires_success=requires_success) for b, d in pairs
        ),
        "group/pivot_mean": _mean(t.pivot for t in distilled),
        "group/pivot_relative": _mean(t.pivot / t.num_steps for t in distilled),
        "group/no_contrast": _mean(r.min() == r.max() for r in rewards),
        "group/steps_mean": _mean(t.num_steps for t in bases),
        "group/generated_tokens": float(sum(g.generated_tokens for g in groups)),
        "group/response_tokens": _mean(t.generated_tokens / t.num_steps for t in bases),
        "group/aux_samples": float(sum(len(r.aux) for r in asked)),
    }
    causes = [r.reflection.cause for r in asked if r.reflection and r.reflection.cause]
    for cause in set(causes):
        figures[f"group/reflection_{cause}"] = causes.count(cause) / len(asked)
    failures = [r.cause for g in groups for r in g.results if r.status == "failed"]
    for cause in set(failures):
        figures[f"group/failed_{cause}"] = float(failures.count(cause))
    faults = Counter(fault for t in bases + distilled for fault in t.faults)
    figures |= {f"group/fault_{name}": float(count) for name, count in faults.items()}
    return _finite(figures)


def staleness_figures(groups: Sequence[Group], version: int) -> Figures:
    """`staleness/`: age in optimizer steps at the draw, and where the seconds went."""
    ages = [version - g.oldest_version for g in groups]
    trajectories = [t for g in groups for t in g.trajectories]
    retries = [t for t in trajectories if t.role == "distilled"]
    thoughts = [r.reflection for g in groups for r in g.results if r.reflection]
    queued = [g.times["drawn"] - g.times["complete"] for g in groups if "drawn" in g.times]
    return _finite(
        {
            "staleness/mean": _mean(ages),
            "staleness/max": float(max(ages, default=0)),
            "staleness/base": _mean(
                version - t.oldest_version for t in _role(trajectories, "base")
            ),
            "staleness/distilled": _mean(version - t.oldest_version for t in retries),
            "staleness/generation_s": _mean(
                t.step_seconds.sum() for t in _role(trajectories, "base")
            ),
            "staleness/reflection_s": _mean(t.seconds for t in thoughts),
            "staleness/retry_s": _mean(t.step_seconds[t.pivot :].sum() for t in retries),
            "staleness/queue_s": _mean(queued),
        }
    )


def histograms(groups: Sequence[Group], version: int) -> dict[str, Any]:
    """Arrays for TensorBoard's histograms."""
    pivots = [t.pivot for g in groups for t in g.trajectories if t.role == "distilled"]
    ages = [version - g.oldest_version for g in groups]
    return {
        name: np.array(values)
        for name, values in {"group/pivot": pivots, "staleness/steps": ages}.items()
        if values
    }


def buffer_figures(stats: BufferStats, version: int) -> Figures:
    """`buffer/` and `actor/`: what the service counts, and what actors report of themselves."""
    figures = {f"buffer/{state}": float(count) for state, count in stats.train.items()}
    figures |= {f"buffer/drop_{cause}": float(n) for cause, n in stats.drops.items()}
    figures |= {
        f"buffer/drop_{kind.replace('/', '_')}": float(n) for kind, n in stats.slot_drops.items()
    }
    figures |= {
        "buffer/bytes": float(stats.disk_bytes),
        "buffer/puts": float(stats.puts),
        "buffer/draws": float(stats.draws),
        "buffer/leases_expired": float(stats.leases_expired),
        "buffer/draws_expired": float(stats.draws_expired),
        "buffer/quorums": float(stats.quorums),
        "buffer/refused": float(sum(stats.refused.values())),
    }
    return _finite(figures | _actor_figures(list(stats.actors.values()), version))


def _actor_figures(reports: Sequence[dict[str, float]], version: int) -> Figures:
    """`actor/` and `weights/` as the actors see it: totals of all that ever told any, whatever
    else of those alone that are there."""

    def total(name: str) -> float:
        return sum(report.get(name, 0.0) for report in reports)

    here = [report for report in reports if report.get("seen_s", 0.0) < GONE_S]

    def mean(name: str) -> float:
        return _mean(report.get(name, 0.0) for report in here)

    figures = {
        "actor/requests_running": sum(r.get("requests_running", 0.0) for r in here),
        "actor/generated_tokens": total("generated_tokens"),
        "weights/received_bytes": total("weights_received_bytes"),
        "weights/fetch_s": mean("weights_fetch_s"),
        "weights/pause_s": mean("weights_pause_s"),
    }
    for name in ("idle_share", "prefix_hit", "weight_version", "paused_s"):
        figures[f"actor/{name}"] = mean(name)
    if here:
        oldest = min(report.get("weight_version", 0.0) for report in here)
        figures["weights/version_lag"] = version - oldest
    if prefixes := total("retry_prefix_tokens"):
        figures["actor/retry_prefix_hit"] = total("retry_cached_tokens") / prefixes
    names = {name for report in reports for name in report if name.startswith("weights_failed_")}
    return figures | {f"weights/{name.removeprefix('weights_')}": total(name) for name in names}


def mismatched_fingerprints(groups: Iterable[Group], seen: dict[int, str]) -> list[str]:
    """Versions for which two actors held different weights; `seen` (version -> hash) is updated
    and keeps the newest REMEMBERED versions."""
    alarms = []
    for group in groups:
        for version, fingerprint in group.fingerprints.items():
            first = seen.setdefault(version, fingerprint)
            if first != fingerprint:
                alarms.append(f"version {version}: {first} and {fingerprint} ({group.actor})")
    for version in sorted(seen)[:-REMEMBERED]:
        del seen[version]
    return alarms


def unstamped(groups: Iterable[Group]) -> int:
    """Attempts of which nobody said what weights sampled them, so that none can be compared."""
    return sum(
        int(attempt.step_versions.max()) not in group.fingerprints
        for group in groups
        for attempt in group.trajectories
    )


def _corrections(group: Group) -> list[tuple[Trajectory, Trajectory]]:
    """(base, distilled) pairs of a group."""
    bases = {t.slot: t for t in group.trajectories if t.role == "base"}
    return [
        (bases[t.parent], t)
        for t in group.trajectories
        if t.role == "distilled" and t.parent in bases
    ]


def _role(trajectories: Iterable[Trajectory], role: str) -> list[Trajectory]:
    return [t for t in trajectories if t.role == role]


def _mean(values: Iterable[Any]) -> float:
    numbers = [float(v) for v in values]
    return sum(numbers) / len(numbers) if numbers else float("nan")


def _finite(figures: Figures) -> Figures:
    return {name: value for name, value in figures.items() if np.isfinite(value)}
