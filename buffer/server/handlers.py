"""The service's handlers, one for each operation of buffer.wire.operations.

Handlers of the writer change the store through a unit of work, after they checked everything.
Handlers of the readers read one snapshot of the store. A handler refuses a request with an
R3LError.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from buffer.groups import draws, insertion, learner_version, leases, progress, results, tasks
from buffer.groups.unit_of_work import UnitOfWork
from buffer.server import idempotency, lookups, stats
from buffer.storage.store import Store
from buffer.storage.transaction import Txn
from buffer.wire.messages import ReceivedRequest
from buffer.wire.operations import (
    AcquireLease,
    BufferStats,
    DrawHead,
    Ids,
    Lease,
    Renew,
    Thread,
    Wait,
)
from buffer.wire.sockets import Frame
from r3l import codec
from r3l.errors import IllegalMove, R3LError, SickResult
from r3l.notices import notice_again
from r3l.records import Record

Answer = tuple[Record, list[Frame]]  # a reply and the frames behind it
Read = Callable[[Txn], Answer]
Result = Record | Answer | R3LError | Read  # a Read is for a reading thread, after the commit


WriteHandler = Callable[[UnitOfWork, ReceivedRequest], Record | Answer | Read]
FullAgo = Callable[[], float | None]
ENDED = 1024
"""Number of remembered draw requests that got no groups. Late copies get no groups either."""


class WriteHandlers:
    """Holds the writer's handlers, and their state outside the store. `full_ago_s`: see
    buffer.wire.access.Access."""

    def __init__(
        self, store: Store, refused: Counter[str], full_ago_s: FullAgo = lambda: None
    ) -> None:
        self._store, self._refused, self._full_ago_s = store, refused, full_ago_s
        self._actors = stats.ActorReports()
        self._ended: deque[str] = deque(maxlen=ENDED)
        self.table: dict[str, WriteHandler] = {
            "add_tasks": _needs_only_arguments(tasks.add_tasks),
            "lease": self._lease,
            "put": _needs_only_arguments(results.put),
            "put_partial": _needs_only_arguments(progress.put_partial),
            "renew": self._renew,
            "release": _needs_only_arguments(leases.release),
            "draw": self._draw,
            "release_draws": _needs_only_arguments(draws.release_draws),
            "commit": _needs_only_arguments(draws.commit),
            "discard": _needs_only_arguments(draws.discard),
            "insert": _needs_only_arguments(insertion.insert),
            "update_priorities": _needs_only_arguments(draws.update_priorities),
            "set_version": _needs_only_arguments(learner_version.set_version),
            "stats": self._stats,
        }

    def handle(self, work: UnitOfWork, request: ReceivedRequest) -> Result:
        handler = self.table[request.operation.name]
        try:
            result: Result = idempotency.once(work, request, lambda: handler(work, request))
            return result
        except IllegalMove:  # half a change may be written: the writer undoes the transaction
            raise
        except SickResult as error:
            actor = request.arguments.actor
            notice_again(f"{actor} {error.cause}", f"refused a request of {actor}: {error}")
            return error
        except R3LError as error:
            return error

    def _lease(self, work: UnitOfWork, request: ReceivedRequest) -> Answer | Wait | Read:
        self._update_actor(request.arguments)
        lease = leases.lease(work, request.arguments, request.rid)
        if isinstance(lease, Wait):
            return lease
        if not leases.hands_archived(work.txn, lease.plan):
            return _on_the_wire(lease)

        def read(txn: Txn) -> Answer:
            handed = tasks.handed_attempts(txn, lease.group_id, lease.plan.handed)
            return _on_the_wire(replace(lease, handed=handed))

        return read

    def _renew(self, work: UnitOfWork, request: ReceivedRequest) -> Ids:
        self._update_actor(request.arguments)
        return leases.renew(work, request.arguments)

    def _update_actor(self, args: AcquireLease | Renew) -> None:
        leases.check_name(args.actor, "actor")
        if dropped := self._actors.update(args.actor, args.metrics):
            self._refused["metrics_not_finite"] += dropped

    def _draw(self, work: UnitOfWork, request: ReceivedRequest) -> Read | DrawHead:
        args, rid = request.arguments, request.rid
        drawn = None if rid in self._ended else draws.draw(work, args, rid)
        if drawn is None:
            self._ended.append(rid)
            return DrawHead(reason=draws.shortage(work, args))
        now = tuple(lookups.status(work.index.live[group_id]) for group_id in drawn.groups)

        def read(txn: Txn) -> Answer:
            part, frames = lookups.drawn(txn, drawn)
            return DrawHead(drawn, now, frames=part.frames, left=part.left), frames

        return read

    def _stats(self, work: UnitOfWork, request: ReceivedRequest) -> BufferStats:
        full_ago_s = self._full_ago_s()
        return stats.collect(work, self._store, self._actors, self._refused, full_ago_s)


def _needs_only_arguments(function: Callable[[UnitOfWork, Any], Record]) -> WriteHandler:
    """Makes a handler from a function that needs only a request's arguments."""
    return lambda work, request: function(work, request.arguments)


def _on_the_wire(lease: Lease) -> Answer:
    """Returns a lease, and then the results and reflections that its group has so far. Together
    these may be larger than a message."""
    parts = (lease.accepted, lease.partial, lease.reflections)
    frames: list[Frame] = [codec.encode(each) for part in parts for each in part]
    following = (len(lease.accepted), len(lease.partial), len(lease.reflections))
    return replace(lease, accepted=(), partial=(), reflections=(), following=following), frames


# ── readers ─────────────────────────────────────────────────────────────────────────────────

READ_HANDLERS: dict[Thread, dict[str, Callable[[Txn, Any], Answer]]] = {
    "drawer": {"get_drawn": lookups.get_drawn},
    "reader": {
        "query": lookups.query,
        "ledger": lambda txn, args: (lookups.ledger(txn, args), []),
        "get": lookups.groups,
    },
}
