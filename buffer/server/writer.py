"""The writer thread: every change of the store, many to a transaction.

    queue ─► take up to 256 jobs ─► one LMDB transaction ─► commit ─► answer them all
                                          │ failed
                                          ▼
              rebuild the index, try one by one, answer whose fault it is with the error

Consumes jobs from the front and runs until it takes None. It waits for a job, or for the next
second to look for leases that ran out and draws held long enough. An answer is sent only after
the commit that made it true. Batches of drawn groups are read and sent by the reader.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from buffer.groups import draws, learner_version, leases, results, retention, tasks
from buffer.groups.incoming import Outcome
from buffer.groups.index import Index
from buffer.groups.unit_of_work import UnitOfWork
from buffer.server import idempotency, stats
from buffer.server.capacity import Room
from buffer.server.reader_watch import Views
from buffer.storage.rows import Status
from buffer.storage.store import Store
from buffer.wire.messages import BufferStats, DrawHead, Request
from r3l.config import RunConfig
from r3l.errors import BufferError_, IllegalMove, R3LError, UserError

BATCH_JOBS = 256
BATCH_BYTES = 16 << 20
TICK_S = 1.0
READER_CHECK_S = 10.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A checked request and the client it came from. `outcomes`: what a put's records tell."""

    client: bytes
    request: Request
    outcomes: tuple[Outcome, ...] = ()
    nbytes: int = 0


@dataclass(frozen=True)
class Batch:
    """A draw to be answered with its groups."""

    head: DrawHead
    groups: tuple[str, ...]


Answer = Callable[[Job, Any], None]  # takes a result or an error to be sent
SendBatch = Callable[[Job, Batch], None]  # has the reader send the groups of a draw


class Writer:
    """The loop and what it remembers between transactions."""

    def __init__(
        self,
        store: Store,
        config: RunConfig,
        queue: SimpleQueue[Job | None],
        refused: Counter[str],
    ) -> None:
        self.store, self.config, self.queue = store, config, queue
        self.index = self._load()
        self.actors = stats.Sightings()
        self._room = Room(store)
        self._views = Views(store)
        self.refused = refused
        self.done_bytes = 0  # read by the front, for back-pressure
        self._held: dict[str, tuple[Job, float]] = {}  # draws to be answered later, by request id
        self._started = time.monotonic()
        self._ticked = self._checked = 0.0
        self._retain_at = 0.0  # when to look next whether groups have to go

    def run(self, answer: Answer, answered: Callable[[], None], send_batch: SendBatch) -> None:
        """Work until None is taken from the queue; then answer what is left.

        `answered` is called after the answers of one transaction. Raises UserError when the
        store is no longer where it was opened.
        """
        running = True
        while running:
            jobs, running = self._take()
            answers = self._transact(jobs, last=not running)
            if self.store.gone:  # before anything is said to be on disk
                raise UserError(
                    f"store {self.store.folder}: was moved or deleted while it was served; what "
                    "was put there since is lost"
                )
            for job, result in answers:
                if isinstance(result, Batch):
                    send_batch(job, result)
                else:
                    answer(job, result)
            if answers:
                answered()
            self.done_bytes += sum(job.nbytes for job in jobs)

    def _load(self) -> Index:
        return Index.load(self.store, self.config.buffer)

    def _take(self) -> tuple[list[Job], bool]:
        """Wait for work; returns it, and False if it is the last."""
        jobs: list[Job] = []
        size = 0
        try:
            job = self.queue.get(timeout=self._patience())
            while job is not None:
                jobs.append(job)
                size += job.nbytes
                if len(jobs) >= BATCH_JOBS or size >= BATCH_BYTES:
                    return jobs, True
                job = self.queue.get_nowait()
            return jobs, False
        except Empty:
            return jobs, True

    def _patience(self) -> float:
        now = time.monotonic()
        until = min(
            [self._ticked + TICK_S, self._retain_at, *(end for _, end in self._held.values())]
        )
        return max(0.0, until - now)

    def _transact(self, jobs: list[Job], last: bool) -> list[tuple[Job, Any]]:
        """Apply the jobs in one transaction; returns what to answer once it has committed."""
        try:
            with self.store.write() as txn:
                full = self._room.refuses(self.index.counts["bytes"])
                work = UnitOfWork(txn, self.index, self.config, time.time(), full)
                self._tick(work)
                answers = [(job, result) for job in jobs for result in self._apply(work, job)]
                answers += self._held_draws(work, last)
                work.finish()
            return answers
        except Exception as error:  # the transaction is undone: survive, and say so
            log.error("a transaction of %d requests failed", len(jobs), exc_info=error)
            self.refused["failed_transactions"] += 1
            self.index = self._load()
            if not jobs:
                time.sleep(TICK_S)  # nobody waits, and what failed would fail again at once
            if len(jobs) > 1:  # one at a time, so that only the one to blame is refused
                return [answer for job in jobs for answer in self._transact([job], last)]
            named = error if isinstance(error, R3LError) else BufferError_(f"internal: {error!r}")
            return [(job, named) for job in jobs]

    def _apply(self, work: UnitOfWork, job: Job) -> list[Any]:
        """What to answer now: one result or error, or nothing yet."""
        try:
            result = idempotency.once(work, job.request, lambda: self._verb(work, job))
        except IllegalMove:  # half a change may be written: undo the transaction
            raise
        except R3LError as error:
            return [error]
        return [] if result is None else [result]

    def _verb(self, work: UnitOfWork, job: Job) -> Any:
        request = job.request
        args, op = request.arguments, request.op
        if op == "put":
            return results.put(work, args, job.outcomes, request.records)
        if op == "lease":
            self.actors.saw(args.actor, args.metrics)
            return leases.lease(work, args, request.rid)
        if op == "renew":
            self.actors.saw(args.actor, args.metrics)
            return leases.renew(work, args)
        if op == "draw":
            return _drawn(work, job) or self._hold(work, job)
        if op == "release_draws":
            self._forget_held(args.consumer)
            return draws.release_draws(work, args)
        if op == "stats":
            return self._figures(work)
        return _VERBS[op](work, args)

    def _figures(self, work: UnitOfWork) -> BufferStats:
        now = time.monotonic()
        oldest_s = self._views.oldest_s(now)
        return stats.collect(
            work, self.store, self.actors, self.refused, now - self._started, oldest_s
        )

    def _tick(self, work: UnitOfWork) -> None:
        now = time.monotonic()
        if now - self._ticked >= TICK_S:
            self._ticked = now
            leases.expire_overdue(work)
        if now >= self._retain_at:
            self._retain(work, now)
        if now - self._checked >= READER_CHECK_S:
            self._checked = now
            self._views.look(now)

    def _retain(self, work: UnitOfWork, now: float) -> None:
        """Evict a chunk; go on in the next transaction, or look again when it cost 1 % of the
        time at most, since groups that may not go yet are looked at every time."""
        gone = retention.evict(work, work.config.retention)
        pause = max(TICK_S, 100 * (time.monotonic() - now))
        self._retain_at = now if gone.more else now + pause

    # ── draws that wait ─────────────────────────────────────────────────────────────────

    def _hold(self, work: UnitOfWork, job: Job) -> DrawHead | None:
        """Keep a draw until it can be answered; a resent one takes the place of the first."""
        if job.request.hold_s <= 0:
            return _unfilled(work, job)
        self._held[job.request.rid] = (job, time.monotonic() + job.request.hold_s)
        return None

    def _held_draws(self, work: UnitOfWork, last: bool) -> list[tuple[Job, Any]]:
        answers: list[tuple[Job, Any]] = []
        for rid, (job, end) in list(self._held.items()):
            drawn = _drawn(work, job)
            if drawn is not None or last or time.monotonic() >= end:
                del self._held[rid]
                answers.append((job, drawn or _unfilled(work, job)))
        return answers

    def _forget_held(self, consumer: str) -> None:
        """A learner that starts anew no longer waits for what it asked before."""
        for rid, (job, _) in list(self._held.items()):
            if job.request.arguments.consumer == consumer:
                del self._held[rid]


def _drawn(work: UnitOfWork, job: Job) -> Batch | None:
    draw = draws.draw(work, job.request.arguments, job.request.rid)
    if draw is None:
        return None
    now = (work.index.live[group_id] for group_id in draw.groups)
    states = tuple(Status(row.state, row.cause, row.times) for row in now)
    head = DrawHead(draw.draw_id, draw.version, draw.probabilities, draw.weights, states)
    return Batch(head, draw.groups)


def _unfilled(work: UnitOfWork, job: Job) -> DrawHead:
    return DrawHead(reason=draws.shortage(work, job.request.arguments))


_VERBS: dict[str, Callable[[UnitOfWork, Any], Any]] = {
    "add_tasks": tasks.add_tasks,
    "resolve": results.resolve,
    "release": leases.release,
    "commit": draws.commit,
    "discard": draws.discard,
    "limit_staleness": learner_version.limit_staleness,
    "set_version": learner_version.set_version,
    "evict": lambda work, args: retention.evict(work, retention.parse_limits(args.limits)),
}
