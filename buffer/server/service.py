"""The service: one socket in front, a writer and a reader thread behind.

    clients ══ROUTER══► front ──queue──► writer ──queue──► reader
               ▲          │  └──────────queue────────────────┘ (history, query, ledger, get)
               └──────────┴◄── outbox ── answers of writer and reader

The front consumes messages, checks them completely and passes on requests; what is malformed,
too large or unknown it answers itself. It waits for a message or an answer, 100 ms at most, and
ends when told to stop and the threads behind it have answered what they had.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from queue import SimpleQueue
from typing import Any

import zmq
from msgspec.structs import replace

from buffer.groups import incoming, queries
from buffer.server.replies import Outbox
from buffer.server.writer import Batch, Job, Writer
from buffer.storage.rows import Status
from buffer.storage.store import Store
from buffer.wire import messages
from buffer.wire.access import HANDSHAKE_S, Gate
from buffer.wire.curve_keys import ServiceKeys
from buffer.wire.frames import LARGE, Frame, has_message, join_records, receive_message
from buffer.wire.messages import CREDIT, Groups
from r3l import codec
from r3l.config import RunConfig
from r3l.errors import BufferError_, LimitExceeded, R3LError, RecordError, UserError

POLL_MS = 100
RECEIVE_AT_ONCE = 64
QUEUE_BYTES = 128 << 20  # requests in memory; beyond, the socket is left to push back
LINGER_MS = 2000
BACKLOG = 1024  # connections that the system keeps until they are accepted
log = logging.getLogger(__name__)


class Service:
    """Binds at once; `run` serves until `stop`. `endpoint` has the port that was taken."""

    def __init__(
        self,
        store: Store,
        config: RunConfig,
        bind: str,
        keys: ServiceKeys | None = None,
        connections: int = 1024,
    ) -> None:
        self.store = store
        self._refused: Counter[str] = Counter()
        self._waiting: Counter[bytes] = Counter()
        self._stop = threading.Event()
        self._failure: UserError | None = None  # why the writer ended
        self._checked: list[Job] = []  # for the writer, of the messages being received
        self._to_writer: SimpleQueue[Job | None] = SimpleQueue()
        self._to_reader: SimpleQueue[tuple[Job, Batch | None] | None] = SimpleQueue()
        self._writer = Writer(store, config, self._to_writer, self._refused)
        self._sent_bytes = 0
        self._context = zmq.Context()
        self._outbox = Outbox(self._context)
        self._router = self._context.socket(zmq.ROUTER)
        self._gate = Gate(self._context, self._router, keys, connections)
        _bind(self._router, bind)
        self.endpoint = self._router.get_string(zmq.LAST_ENDPOINT)

    def stop(self) -> None:
        """Ask `run` to end; may be called from a signal handler or another thread."""
        self._stop.set()

    def run(self) -> None:
        """Serve until stopped, then answer what was received and close the sockets."""
        threads = [
            threading.Thread(target=self._run_writer, name="writer"),
            threading.Thread(target=self._run_reader, name="reader"),
        ]
        for thread in threads:
            thread.start()
        while not self._stop.is_set() and all(t.is_alive() for t in threads):
            self._front(receive=True)
        self._to_writer.put(None)
        while any(thread.is_alive() for thread in threads):
            self._front(receive=False)
        self._front(receive=False)
        self._gate.close()
        self._router.close(linger=LINGER_MS)
        self._outbox.socket.close(linger=0)
        self._context.term()
        if self._failure is not None:
            raise self._failure
        if not self._stop.is_set():
            raise BufferError_("a thread of the buffer service ended unexpectedly; see its log")

    # ── front ───────────────────────────────────────────────────────────────────────────

    def _front(self, *, receive: bool) -> None:
        """Pass on what has arrived from either side."""
        sources = [(socket, zmq.POLLIN) for socket in (self._outbox.socket, *self._gate.sockets)]
        backlog = self._sent_bytes - self._writer.done_bytes
        if receive and backlog < QUEUE_BYTES:
            sources.append((self._router, zmq.POLLIN))
        ready = dict(zmq.zmq_poll(sources, POLL_MS))
        if any(socket in ready for socket in self._gate.sockets):
            self._gate.look()
            self._refused.update(self._gate.turned_away - self._refused)
        self._outbox.settle()
        if self._outbox.socket in ready:
            self._send_answers()
        if self._router in ready:
            for _ in range(RECEIVE_AT_ONCE):
                client, *received = receive_message(self._router)
                self._receive(bytes(client), received)
                if not has_message(self._router):
                    break
            self._hand_over()

    def _receive(self, client: bytes, frames: list[Frame]) -> None:
        """Check one message and pass it on, or answer why not."""
        rid = ""
        try:
            header = _header(frames)
            rid = header["rid"]
            if self._waiting[client] >= CREDIT:
                raise LimitExceeded(f"{CREDIT} requests wait for answers; wait for some first")
            self._dispatch(client, messages.parse_request(header, frames[1:]))
        except R3LError as error:
            self._reply(client, type(error).__name__, messages.error_frames(rid, error))
        except Exception as error:  # a hostile message must not end the service
            log.exception("a message could not be read")
            unreadable = RecordError(f"unreadable message: {error!r:.200}")
            self._reply(client, "unreadable", messages.error_frames(rid, unreadable))

    def _dispatch(self, client: bytes, request: messages.Request) -> None:
        outcomes = tuple([incoming.check(data) for data in request.records])
        job = Job(client, request, outcomes, nbytes=sum(map(len, request.records)))
        self._waiting[client] += 1
        if request.op in _READS or request.op in _FIGURES:
            self._to_reader.put((job, None))
        else:
            self._checked.append(job)

    def _hand_over(self) -> None:
        """Give the writer what came at once together: it would commit the first by itself."""
        for job in self._checked:
            self._sent_bytes += job.nbytes
            self._to_writer.put(job)
        self._checked.clear()

    def _send_answers(self) -> None:
        for client, error, reply in self._outbox.take():
            self._waiting[client] -= 1
            if self._waiting[client] <= 0:
                del self._waiting[client]
            self._reply(client, error, reply)

    def _reply(self, client: bytes, error: str, frames: list[bytes]) -> None:
        if error:
            self._refused[error] += 1
        try:
            self._outbox.send(client, frames, self._router)
        except zmq.ZMQError as failure:  # gone (EHOSTUNREACH) or too slow (EAGAIN): it asks again
            self._refused["unanswered"] += 1
            log.debug("an answer could not be delivered: %s", failure)

    # ── threads ─────────────────────────────────────────────────────────────────────────

    def _run_writer(self) -> None:
        with self._outbox.bell() as bell:
            try:
                self._writer.run(
                    answer=lambda job, result: self._outbox.put(
                        job.client, job.request.rid, result
                    ),
                    answered=lambda: bell.send(b""),
                    send_batch=lambda job, batch: self._to_reader.put((job, batch)),
                )
            except UserError as error:
                self._failure = error
        self._to_reader.put(None)

    def _run_reader(self) -> None:
        """Read and send groups: drawn batches after their commit, and all plain queries."""
        with self._outbox.bell() as bell:
            while (item := self._to_reader.get()) is not None:
                job, batch = item
                result, records = self._try_read(job, batch)
                self._outbox.put(job.client, job.request.rid, result, records)
                bell.send(b"")

    def _try_read(self, job: Job, batch: Batch | None) -> tuple[Any, list[bytes]]:
        try:
            self._outbox.check_credit(job.client)
            return self._read(job, batch)
        except R3LError as error:
            return error, []
        except Exception as error:  # one bad query must not end the service
            log.exception("%s failed", job.request.op)
            return BufferError_(f"internal: {error!r:.200}"), []

    def _read(self, job: Job, batch: Batch | None) -> tuple[Any, list[bytes]]:
        args = job.request.arguments
        if batch is not None:
            with self.store.read(in_place=True) as txn:
                records = queries.drawn(txn, batch.groups)
                head = replace(batch.head, sizes=tuple(map(len, records)))
                return head, join_records(records)
        with self.store.read() as txn:
            if job.request.op in _FIGURES:
                return _FIGURES[job.request.op](txn, args), []
            rows = _READS[job.request.op](txn, args)
            now = tuple(Status(row.state, row.cause, row.times) for row in rows)
            records = queries.records(txn, rows)
            return Groups(now, tuple(map(len, records))), join_records(records)


_FIGURES: dict[str, Any] = {"ledger": queries.ledger, "would_evict": queries.would_evict}
_READS: dict[str, Any] = {
    "history": queries.history,
    "query": queries.query,
    "get": queries.groups,
}


def _header(frames: list[Frame]) -> dict[str, Any]:
    if not frames:
        raise RecordError("an empty message")
    header = codec.unpack(frames[0])
    messages.check_header(header)
    return header


def _bind(router: Any, bind: str) -> None:
    router.set(zmq.ROUTER_MANDATORY, 1)  # without it answers to slow peers vanish silently
    router.set(zmq.SNDHWM, 2 * CREDIT)
    router.set(zmq.RCVHWM, 64)
    router.set(zmq.MAXMSGSIZE, messages.MESSAGE_LIMIT)
    router.set(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
    router.set(zmq.BACKLOG, BACKLOG)
    router.set(zmq.HEARTBEAT_IVL, 2000)
    router.set(zmq.HEARTBEAT_TIMEOUT, 20000)
    router.copy_threshold = LARGE
    try:
        router.bind(bind)
    except zmq.ZMQError as error:
        router.close(linger=0)
        raise UserError(f"bind {bind}: {error.strerror}") from None
