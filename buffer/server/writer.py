"""The writer thread: every change of the store, many to a transaction.

    queue ─► take up to 256 requests ─► one LMDB transaction ─► commit ─► reply to them all
                                          │ failed
                                          ▼
              rebuild the index, try one by one, reply with the error to the one that fails

Consumes requests from the front and runs until it takes None. It waits for a request, or for the
next second, in which it expires leases. A reply is sent only after the commit that made it true.
Drawn groups are read and sent by the reader. Clients whose draws wait for groups are told to ask
again between two transactions, so that what becomes of their draws concerns no other request.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from queue import Empty, SimpleQueue

from buffer.groups import leases, retention
from buffer.groups.index import Index
from buffer.groups.unit_of_work import UnitOfWork
from buffer.server.capacity import Capacity
from buffer.server.handlers import Result, WriteHandlers
from buffer.storage.store import Store
from buffer.wire.messages import Request
from buffer.wire.operations import AskAgain, DrawHead
from r3l.config import RunConfig
from r3l.errors import BufferError_, R3LError, StoreError, UserError
from r3l.process.notices import notice_again

BATCH_REQUESTS = 256
BATCH_BYTES = 16 << 20
TICK_S = 1.0
READER_CHECK_S = 10.0
STOPS = DrawHead(reason="the buffer service stops")
log = logging.getLogger(__name__)

Results = list[tuple[Request, Result]]


class Writer:
    """The loop and what it remembers between transactions."""

    def __init__(
        self,
        store: Store,
        config: RunConfig,
        queue: SimpleQueue[Request | None],
        refused: Counter[str],
    ) -> None:
        self.store, self.config, self.queue = store, config, queue
        self.index = self._load()
        self.handlers = WriteHandlers(store, refused)
        self.refused = refused
        self.done_bytes = 0  # read by the front, for back-pressure
        self._capacity = Capacity(store)
        self._ticked = self._readers_checked = 0.0
        self._retain_at = 0.0  # when to look next whether groups have to go

    def run(self, send: Callable[[Results], None]) -> None:
        """Work until None is taken from the queue; then reply to what is left.

        `send` is called with the results of one transaction. Raises UserError when the store is
        no longer in its folder.
        """
        running = True
        while running:
            requests, running = self._take()
            results = self._transact(requests)
            if self.store.gone:  # before anything is said to be on disk
                raise UserError(
                    f"store {self.store.folder}: was moved or deleted while it was served; what "
                    "was put there since is lost"
                )
            results += self._end_waits(last=not running)
            if results:
                send(results)
            self.done_bytes += sum(request.nbytes for request in requests)

    def _load(self) -> Index:
        return Index.load(self.store, self.config.buffer)

    def _take(self) -> tuple[list[Request], bool]:
        """Wait for requests; returns them, and False if they are the last."""
        requests: list[Request] = []
        size = 0
        try:
            request = self.queue.get(timeout=self._seconds_to_wait())
            while request is not None:
                requests.append(request)
                size += request.nbytes
                if len(requests) >= BATCH_REQUESTS or size >= BATCH_BYTES:
                    return requests, True
                request = self.queue.get_nowait()
            return requests, False
        except Empty:
            return requests, True

    def _seconds_to_wait(self) -> float:
        until = min(self._ticked + TICK_S, self._retain_at, self.handlers.held.until)
        return max(0.0, until - time.monotonic())

    def _transact(self, requests: list[Request]) -> Results:
        """Carry out the requests in one transaction; returns the results after its commit."""
        try:
            with self.store.write() as txn:
                full = self._capacity.refusal(self.index.counts["bytes"])
                if full:
                    notice_again("full", f"new results are refused, actors wait: {full}")
                work = UnitOfWork(txn, self.index, self.config, time.time(), full)
                self._tick(work)
                handled = [(request, self.handlers.handle(work, request)) for request in requests]
                results = [(request, result) for request, result in handled if result is not None]
                work.finish()
            return results
        except Exception as error:  # the transaction is undone: survive, and say so
            log.error("a transaction of %d requests failed", len(requests), exc_info=error)
            self.refused["failed_transactions"] += 1
            if isinstance(error, StoreError) and error.cause == "disk":
                notice_again("disk", f"requests are refused: {error}")
            self.index = self._load()
            if not requests:
                time.sleep(TICK_S)  # no request waits, and a retry would fail at once
            if len(requests) > 1:  # one at a time, so that only the one to blame is refused
                return [pair for request in requests for pair in self._transact([request])]
            named = error if isinstance(error, R3LError) else BufferError_(f"internal: {error!r}")
            return [(request, named) for request in requests]

    def _end_waits(self, *, last: bool) -> Results:
        """The replies to draws that need not wait any longer; `last`: to all that wait."""
        ended = self.handlers.held.take(self.index, self.config.buffer, last=last)
        reply = STOPS if last else AskAgain()
        return [(request, reply) for request in ended]

    def _tick(self, work: UnitOfWork) -> None:
        """Do what is due: expire leases and draws, evict groups, watch readers."""
        now = time.monotonic()
        if now - self._ticked >= TICK_S:
            self._ticked = now
            leases.expire_overdue(work)
        if now >= self._retain_at:
            self._retain(work, now)
        if now - self._readers_checked >= READER_CHECK_S:
            self._readers_checked = now
            self.handlers.reader_watch.update(now)

    def _retain(self, work: UnitOfWork, now: float) -> None:
        """Evict a chunk; go on in the next transaction, or look again when it cost 1 % of the
        time at most, since groups that may not go yet are looked at every time."""
        gone = retention.evict(work, work.config.retention)
        pause = max(TICK_S, 100 * (time.monotonic() - now))
        self._retain_at = now if gone.more else now + pause
