"""The service's metrics, and the latest metrics of its actors."""

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping

from buffer.groups.draw_deadlines import held_by
from buffer.groups.unit_of_work import UnitOfWork
from buffer.indexes.index import Index
from buffer.storage.counts import slot_drops, stale_share, trained, under
from buffer.storage.store import Store
from buffer.wire.operations import NAME_LIMIT, BufferStats
from r3l.errors import RecordError
from r3l.records import GROUP_STATES, Purpose

ACTORS_LIMIT = 4096
METRICS_LIMIT = 256  # of one actor
ACTORS_BYTES = 14 << 20  # of all metrics and their names: a reply has at most 16 MiB
STARTED = time.time()
COUNTED = ("puts", "draws", "drawn_groups", "leases", "leases_expired", "draws_expired",
           "fingerprint_conflicts", "rewound", "rewound_evicted", "made", "inserted")  # fmt: skip


class ActorReports:
    """Each actor's latest metrics, and the time of their arrival. Beyond ACTORS_LIMIT and
    ACTORS_BYTES, the actors that have been silent for longest are forgotten."""

    def __init__(self) -> None:
        self._actors: OrderedDict[str, tuple[float, dict[str, float]]] = OrderedDict()
        self._bytes = 0

    def update(self, actor: str, metrics: Mapping[str, float]) -> int:
        """Merges new metrics of an actor into its earlier metrics. Leaves out metrics that are not
        finite; returns how many. Raises RecordError for too many metrics, or a name that cannot be
        shown."""
        if len(metrics) > METRICS_LIMIT:
            raise RecordError(
                f"actor {actor}: sends {len(metrics)} metrics, more than {METRICS_LIMIT}"
            )
        for name in metrics:
            if not 0 < len(name) <= NAME_LIMIT or not name.isprintable():
                raise RecordError(
                    f"actor {actor}: the metric {name!r:.80} must have 1 to {NAME_LIMIT} "
                    "characters, all of them printable"
                )
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        known = self._pop(actor)
        merged = known | finite
        if len(merged) > METRICS_LIMIT:
            merged = dict(list(merged.items())[-METRICS_LIMIT:])
        self._actors[actor] = (time.monotonic(), merged)
        self._bytes += _size(actor, merged)
        while len(self._actors) > ACTORS_LIMIT or self._bytes > ACTORS_BYTES:
            self._pop(next(iter(self._actors)))
        return len(metrics) - len(finite)

    def _pop(self, actor: str) -> dict[str, float]:
        """Forgets an actor. Returns its metrics."""
        if actor not in self._actors:
            return {}
        _, known = self._actors.pop(actor)
        self._bytes -= _size(actor, known)
        return known

    def report(self) -> dict[str, dict[str, float]]:
        """Returns each actor's metrics, with `seen_s`: seconds since it last sent metrics."""
        now = time.monotonic()
        return {
            name: metrics | {"seen_s": now - at} for name, (at, metrics) in self._actors.items()
        }


def _size(actor: str, metrics: Mapping[str, float]) -> int:
    """Returns the most bytes that an actor takes in a reply. A name takes 5 in addition to its
    text, a number 9, a map 5; `seen_s` is a further number."""
    return 64 + len(actor.encode()) + sum(14 + len(name.encode()) for name in metrics)


def collect(
    work: UnitOfWork,
    store: Store,
    actors: ActorReports,
    refused: Counter[str],
    full_ago_s: float | None = None,
) -> BufferStats:
    """Returns all metrics. `full_ago_s`: as in BufferStats."""
    index = work.index
    progress, counts = index.progress, index.counts
    errors = dict(refused)
    return BufferStats(
        train=_states(index, "train"),
        eval=_states(index, "eval"),
        drops=dict(under(counts, "drop/group")),
        stale_share=stale_share(counts),
        replaced=dict(under(counts, "replaced")),
        slot_drops=slot_drops(counts),
        partial_dropped=dict(under(counts, "partial_dropped")),
        archived=counts["archived"],
        archive_failed=dict(under(counts, "archive_failed")),
        algorithm_failed=dict(under(counts, "algorithm_failed")),
        **{name: counts[name] for name in COUNTED},
        trained=trained(counts),
        evicted=sum(under(counts, "evicted").values()),
        learner_version=progress.version,
        max_staleness=work.config.max_staleness,
        tasks=index.tasks["train", ""],
        disk_bytes=store.disk_bytes,
        free_bytes=store.free_bytes,
        eval_progress={
            tag: (index.eval_done[tag], total)
            for (purpose, tag), total in index.tasks.items()
            if purpose == "eval"
        },
        actors=actors.report(),
        undelivered=errors.pop("undelivered", 0),
        drawn_by=held_by(index.draws),
        cpu_s=time.process_time(),
        started=STARTED,
        refused={name: count for name, count in errors.items() if count},
        full_ago_s=full_ago_s,
    )


def _states(index: Index, purpose: Purpose) -> dict[str, int]:
    return {state: index.counts[f"group/{purpose}/{state}"] for state in GROUP_STATES}
