"""Computes metrics of the buffer service, and of the actors that report to it."""

from collections.abc import Mapping

from buffer import BufferStats
from learner.metrics.group_metrics import Metrics, finite
from r3l.run.actor_metrics import ActorMetrics, combined

GONE_S = 30.0  # without a heartbeat (due every 2 s) for this long, an actor counts as gone


def buffer_metrics(stats: BufferStats) -> Metrics:
    """Computes the metrics `buffer/…` from the service's counts."""
    return {
        **{f"buffer/{state}": float(count) for state, count in stats.train.items()},
        **{f"buffer/expired_{cause}": float(count) for cause, count in stats.drops.items()},
        **{
            f"buffer/slots_{kind.replace('/', '_')}": float(count)
            for kind, count in stats.slot_drops.items()
        },
        **{
            f"buffer/partial_dropped_{cause}": float(count)
            for cause, count in stats.partial_dropped.items()
        },
        **{
            f"buffer/algorithm_failed_{method}": float(count)
            for method, count in stats.algorithm_failed.items()
        },
        **{
            f"buffer/archive_failed_{kind}": float(count)
            for kind, count in stats.archive_failed.items()
        },
        "buffer/archived": float(stats.archived),
        "buffer/stale_share": stats.stale_share,
        "buffer/bytes": float(stats.disk_bytes),
        "buffer/puts": float(stats.puts),
        "buffer/draws": float(stats.draws),
        "buffer/leases_expired": float(stats.leases_expired),
        "buffer/draws_expired": float(stats.draws_expired),
        "buffer/refused": float(sum(stats.refused.values())),
    }


def actor_metrics(actors: Mapping[str, Mapping[str, float]], version: int) -> Metrics:
    """Combines the actors' reports (BufferStats.actors) into the metrics of r3l.run.actor_metrics.
    `version`: the learner's version."""
    here = [numbers for numbers in actors.values() if numbers.get("seen_s", 0.0) < GONE_S]
    present = [*map(ActorMetrics.read, here)]
    metrics = combined(map(ActorMetrics.read, actors.values()), present)
    if present:
        metrics["weights/version_lag"] = version - min(actor.weight_version for actor in present)
    if prompts := metrics.get("actor/prompt_tokens", 0.0):
        metrics["actor/prefix_hit"] = metrics["actor/cached_tokens"] / prompts
    return finite(metrics)
