"""Computes metrics of a step's groups. A metric without data is left out."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from buffer import Draw
from learner.evaluation.lengths import length_metrics
from learner.metrics.reward_metrics import length_correlation
from r3l.algorithms import guidance_gain, rows
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.records import SUCCESS, Group
from r3l.weights.manifest import fingerprints_agree

Metrics = dict[str, float]
REMEMBERED = 1000
EXAMPLE = 160  # characters of a reflection that are shown


def group_metrics(
    groups: Sequence[Group], algorithm: Algorithm | None = None, *, several: bool = False
) -> Metrics:
    """Computes the metrics `group/…`, including those of the run's algorithm. `several`: the run
    has several environments."""
    bases = [t for g in groups for t in g.trajectories if t.of < 0]
    begun = [t for t in bases if t.origin is None]
    distilled = [t for g in groups for t in g.trajectories if t.of >= 0]
    started = [t for t in bases if t.origin is not None]
    thoughts = [r for g in groups for r in g.reflections]
    pairs = [pair for g in groups for pair in g.retries]
    rewards = [g.rewards for g in groups]
    gains = [
        guidance_gain.of_group(((t.slot, t.of, t.reward) for t in g.trajectories), g.plan.kind)
        for g in groups
    ]
    gain, error = guidance_gain.estimate(gains)
    metrics = {
        "group/attempts": float(len(bases + distilled)),
        "group/retries": float(len(distilled)),
        "group/successes": float(sum(t.reward >= SUCCESS for t in bases + distilled)),
        "group/reward_mean": mean(t.reward for t in bases + distilled),
        "group/best_reward": mean(r.max() for r in rewards),
        "group/reward_std": mean(r.std() for r in rewards),
        "group/success_base": mean(t.reward >= SUCCESS for t in begun if t.shown is None),
        "group/success_context": mean(t.reward >= SUCCESS for t in begun if t.shown is not None),
        "group/success_started": mean(t.reward >= SUCCESS for t in started),
        "group/started": float(len(started)) or float("nan"),
        "group/start_relative": mean(t.pivot / t.num_steps for t in started),
        "group/success_retry": mean(t.reward >= SUCCESS for t in distilled),
        "group/trigger_rate": mean(called for g in groups for called in _called_for_a_retry(g)),
        "group/reflection_valid": mean(not r.cause for r in thoughts),
        "group/improvement_rate": mean(b.reward < d.reward for b, d in pairs),
        "group/guidance_gain": gain,
        "group/guidance_gain_se": error,
        "group/guidance_slots": sum(one.slots for one in gains) or float("nan"),
        "group/pivot_relative": mean(t.pivot / t.num_steps for t in distilled),
        "group/no_contrast": mean(r.min() == r.max() for r in rewards),
        "group/steps_mean": mean(t.num_steps for t in bases),
        "group/length_correlation": length_correlation(groups),
        "group/generated_tokens": float(sum(g.generated_tokens for g in groups)),
    }
    unread = Counter(r.cause for r in thoughts if r.cause)
    failures = Counter(r.cause for g in groups for r in g.results if r.status == "failed")
    faults = Counter(fault for t in bases + distilled for fault in t.faults)
    metrics |= {f"group/reflection_{cause}": n / len(thoughts) for cause, n in unread.items()}
    metrics |= {f"group/failed_{cause}": float(n) for cause, n in failures.items()}
    metrics |= {f"group/fault_{name}": float(n) for name, n in faults.items()}
    parts = {name for t in bases for name in t.extra.reward_parts}
    metrics |= {
        f"group/part_{n}": mean(t.extra.reward_parts.get(n, 0.0) for t in bases) for n in parts
    }
    metrics |= {f"group/{name}": value for name, value in length_metrics(groups).items()}
    metrics |= (algorithm or Algorithm()).metrics(groups)
    by_env = success_by_environment(groups) if several else {}
    metrics |= {f"group/success_base_{env}": share for env, share in by_env.items()}
    return finite(metrics)


def success_by_environment(groups: Sequence[Group]) -> Metrics:
    """Returns each environment's success rate: the share of base slots with full reward."""
    played, won = Counter[str](), Counter[str]()
    for group in groups:
        own = [r for r in group.results if r.of < 0 and r.status != "skipped"]
        bases = [result.trajectory for result in own]
        played[group.task.env] += len(bases)
        won[group.task.env] += sum(t is not None and t.reward >= SUCCESS for t in bases)
    return {env: won[env] / n for env, n in played.items() if n}


def unread_reflection(groups: Sequence[Group]) -> str:
    """If all reflections are unreadable, returns the start of the first one, in quotes; else ""."""
    reflections = [reflection for group in groups for reflection in group.reflections]
    if not reflections or not all(reflection.cause for reflection in reflections):
        return ""
    return repr(reflections[0].text[:EXAMPLE])


def selection_metrics(batch: Batch, replaced: Iterable[Group], algorithm: Algorithm) -> Metrics:
    """Computes what the algorithm leaves out of a step: `group/dropped`, the share of the step's
    own attempts, and `group/aux_left_out`, the number of supervised samples. `batch`: the step's
    batch, with the answers of its queries. `replaced`: groups that the algorithm refused."""
    dropped = [True for group in replaced for _ in group.trajectories]
    for group, values in zip(batch.groups, algorithm.advantages(batch), strict=True):
        if group.group_id not in batch.replayed:
            dropped += (~rows.kept(values)[: len(group.trajectories)]).tolist()
    left_out = algorithm.count_left_out(batch)
    count = float("nan") if left_out is None else float(left_out)
    return finite({"group/dropped": mean(dropped), "group/aux_left_out": count})


def staleness_metrics(groups: Sequence[Group], version: int) -> Metrics:
    """Computes `staleness/…`: ages, in versions, of groups drawn at `version`."""
    ages = [version - g.oldest_version for g in groups]
    return finite({"staleness/mean": mean(ages), "staleness/max": float(max(ages, default=0))})


def time_metrics(groups: Sequence[Group]) -> Metrics:
    """Computes `time/…`: seconds that each phase of the drawn groups took."""
    bases = [t for g in groups for t in g.trajectories if t.of < 0]
    retries = [t for g in groups for t in g.trajectories if t.of >= 0]
    thoughts = [reflection for g in groups for reflection in g.reflections]
    queued = [g.times["drawn"] - g.times["complete"] for g in groups if "drawn" in g.times]
    spread = [
        g.times["complete"] - g.times["filling"]
        for g in groups
        if {"filling", "complete"} <= g.times.keys()
    ]
    return finite(
        {
            "time/generation_s": mean(t.step_seconds.sum() for t in bases),
            "time/reflection_s": mean(t.seconds for t in thoughts),
            "time/retry_s": mean(t.step_seconds[t.pivot :].sum() for t in retries),
            "time/spread_s": mean(spread),
            "time/queue_s": mean(queued),
        }
    )


def reuse_metrics(draw: Draw) -> Metrics:
    """Computes `replay/…` from a draw's replayed and imported groups, `recall/…` from its recalled
    attempts."""
    again = [group for group in draw.groups if group.group_id in draw.replayed]
    joined = [recalled.trajectory for recalled in draw.recalled]
    return finite(
        {
            "replay/groups": float(len(again)),
            "replay/imported": float(sum(bool(group.source) for group in again)),
            "replay/staleness": mean(
                draw.version - g.oldest_version for g in again if not g.source
            ),
            "recall/attempts": float(len(joined)),
            "recall/lost": float(draw.recall_lost),
            "recall/success": mean(t.reward >= SUCCESS for t in joined),
            "recall/staleness": mean(draw.version - t.oldest_version for t in joined),
        }
    )


def histograms(groups: Sequence[Group], version: int) -> dict[str, Any]:
    """Returns the values for histograms, keyed by tag."""
    attempts = [t for g in groups for t in g.trajectories]
    values = {
        "group/pivot": [t.pivot for t in attempts if t.of >= 0],
        "group/rewards": [t.reward for t in attempts],
        "group/lengths": [len(t.token_ids) for t in attempts],
        "staleness/versions": [version - g.oldest_version for g in groups],
    }
    return {tag: np.array(numbers) for tag, numbers in values.items() if numbers}


def mismatched_fingerprints(groups: Iterable[Group], seen: dict[int, str]) -> list[str]:
    """Describes each fingerprint that differs from the first one of the same version. Updates
    `seen` (version -> first fingerprint), which keeps only the newest versions."""
    alarms = []
    for group in groups:
        for version, fingerprint in group.fingerprints.items():
            first = seen.setdefault(version, fingerprint)
            if not fingerprints_agree(first, fingerprint):
                alarms.append(f"version {version}: {first} and {fingerprint} ({group.actor})")
    for version in sorted(seen)[:-REMEMBERED]:
        del seen[version]
    return alarms


def _called_for_a_retry(group: Group) -> list[bool]:
    """Returns for each reflection on an attempt whether it called for a retry, which may have
    failed."""
    retried = {r.of for r in group.results if r.of >= 0 and r.status != "skipped"}
    return [thought.of in retried for thought in group.reflections if thought.of >= 0]


def mean(values: Iterable[Any]) -> float:
    numbers = [float(v) for v in values]
    return sum(numbers) / len(numbers) if numbers else float("nan")


def finite(metrics: Metrics) -> Metrics:
    return {name: value for name, value in metrics.items() if np.isfinite(value)}
