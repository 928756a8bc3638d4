"""The writer thread: makes all changes to the store, many in each transaction.

    queue ─► take up to 256 requests ─► one LMDB transaction ─► commit ─► reply to them all
                                          │ failed
                                          ▼
              rebuild the index, carry out each request alone, reply to a failed one with its error

A reply is sent only after the commit. A lease that has to wait may be parked instead
(buffer.server.parked_leases). Overdue leases expire every second. If nothing was committed
for more than STALLED_S seconds, for example because the disk was full, all leases and draws are
extended by the length of this pause.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable

from buffer.groups import leases, retention
from buffer.groups.unit_of_work import Rules, UnitOfWork
from buffer.indexes.index import Index
from buffer.server.archiver import Archiver
from buffer.server.capacity import Capacity
from buffer.server.fair_queue import FairQueue
from buffer.server.handlers import FullAgo, Result, WriteHandlers
from buffer.server.parked_leases import ParkedLeases
from buffer.storage.archive_files import Archive
from buffer.storage.store import Store
from buffer.wire.messages import ReceivedRequest
from buffer.wire.operations import Wait
from r3l.errors import BufferError_, R3LError, StoreError, UserError
from r3l.notices import notice_again

BATCH_REQUESTS = 256
BATCH_BYTES = 16 << 20
TICK_S = 1.0
READER_CHECK_S = 10.0
STALLED_S = 3.0
log = logging.getLogger(__name__)

Results = list[tuple[ReceivedRequest, Result]]


class Writer:
    """Runs the writer's loop, and keeps its state between transactions. `full_ago_s`: see
    WriteHandlers."""

    def __init__(
        self,
        store: Store,
        rules: Rules,
        queue: FairQueue,
        refused: Counter[str],
        full_ago_s: FullAgo = lambda: None,
    ) -> None:
        self.store, self.rules, self.queue = store, rules, queue
        self.index = Index.load(store, rules.buffer)
        self.handlers = WriteHandlers(store, refused, full_ago_s)
        self.parked = ParkedLeases()
        self.refused = refused
        self.done_bytes = 0  # read by the front, for back-pressure
        self._capacity = Capacity(store)
        self._ticked = self._readers_checked = 0.0
        self._worked = time.time()  # when the last transaction began in which actors could renew
        self._failed = False  # whether the last requests failed
        address = rules.buffer.archive
        self._archiver = Archiver(store, Archive(address)) if address else None
        self._retain_at = 0.0  # when to check next whether to evict groups

    def run(self, send: Callable[[Results], None]) -> None:
        """Works until the queue has ended and is empty. Passes the results of each transaction to
        `send`. Raises UserError if the store was moved or deleted."""
        running = True
        while running:
            requests, running = self._take()
            received = sum(request.nbytes for request in requests)
            if running:
                requests += self.parked.take(self._outlook, time.monotonic())
            else:
                requests += self.parked.take_all()
            results = list(filter(self._is_answer, self._transact(requests)))
            if self.store.gone:  # before a reply claims that something is on disk
                raise UserError(
                    f"store {self.store.folder}: was moved or deleted while it was served; results "
                    "since then are lost"
                )
            if results:
                send(results)
            self.done_bytes += received

    @property
    def _outlook(self) -> object:
        return leases.outlook(self.index, self.rules.groups_per_step)

    def _is_answer(self, pair: tuple[ReceivedRequest, Result]) -> bool:
        """Returns whether the result is the answer to the request. It is not if the request is
        parked: a lease without work, unless its time is over or work would not help."""
        request, result = pair
        if isinstance(result, Wait) and not result.for_weights and request.arguments.wait_s:
            return not self.parked.park(request, time.monotonic())
        if request.operation.name == "lease":
            self.parked.answered(request, granted=not isinstance(result, Wait | R3LError))
        return True

    def stop_archiving(self) -> None:
        """Ends the archiver's reads, so that the store can be closed."""
        if self._archiver:
            self._archiver.stop()

    def _take(self) -> tuple[list[ReceivedRequest], bool]:
        """Waits for requests. Returns them, and whether more may follow."""
        until = min(self._ticked + TICK_S, self._retain_at, self.parked.next_at(self._outlook))
        return self.queue.take(until, BATCH_REQUESTS, BATCH_BYTES)

    def _transact(self, requests: list[ReceivedRequest]) -> Results:
        """Carries out the requests in one transaction. Returns the results after the commit."""
        try:
            with self.store.write() as txn:
                full = self._capacity.refusal(self.index.counts["bytes"])
                if full:
                    notice_again("full", f"new results are refused, actors wait: {full}")
                work = UnitOfWork(txn, self.index, self.rules, time.time(), full)
                stalled = work.now - self._worked
                if stalled > STALLED_S:
                    leases.extend(work, stalled)
                self._tick(work)
                results = [(request, self.handlers.handle(work, request)) for request in requests]
                work.finish()
            self._failed = self._failed and not requests
            if not self._failed or stalled > STALLED_S:
                self._worked = work.now
            return results
        except Exception as error:  # the transaction is undone; the service continues
            log.error("a transaction of %d requests failed", len(requests), exc_info=error)
            self.refused["failed_transactions"] += 1
            if isinstance(error, StoreError) and error.cause == "disk":
                notice_again("disk", f"requests are refused: {error}")
            self.index = Index.load(self.store, self.rules.buffer)
            self._failed = True
            if not requests:
                time.sleep(TICK_S)  # no request waits, and a retry would fail at once
            if len(requests) > 1:  # one at a time, so that only the failing one is refused
                return [pair for request in requests for pair in self._transact([request])]
            cause = error if isinstance(error, R3LError) else BufferError_(f"internal: {error!r}")
            return [(request, cause) for request in requests]

    def _tick(self, work: UnitOfWork) -> None:
        """Regularly expires old leases and draws, evicts groups, and closes the read transactions
        that dead processes left open."""
        now = time.monotonic()
        if now - self._ticked >= TICK_S:
            self._ticked = now
            leases.expire_overdue(work)
        if now >= self._retain_at:
            evicted = retention.evict(work, work.config.retention)
            # If there is more to evict, the next transaction continues; otherwise the next check
            # comes after a pause, so that checks take at most 1 % of the time.
            pause = max(TICK_S, 100 * (time.monotonic() - now))
            self._retain_at = now if len(evicted) == retention.CHUNK else now + pause
        if self._archiver:
            self._archiver.tick(work)
        if now - self._readers_checked >= READER_CHECK_S:
            self._readers_checked = now
            self.store.clear_readers()
