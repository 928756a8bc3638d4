"""The service: one socket in front, a writer and a reader thread behind it.

    clients ══ROUTER══► front ──queue──► writer ──queue──► reader
               ▲          │  └──────────queue────────────────┘ (operations of the reader)
               └──────────┴◄── replies of writer and reader

The front checks messages and passes requests on. It refuses malformed, unknown and oversized
requests itself. It never stops reading its socket, because libzmq would keep unread messages in
memory. When too many bytes wait for the writer, it drops requests, large requests first. Their
clients send them again.
"""

import logging
import os
import threading
from collections import Counter
from queue import SimpleQueue

import zmq

from buffer.groups.unit_of_work import Rules
from buffer.server.handlers import READ_HANDLERS, Read
from buffer.server.memory_limit import MemoryLimit
from buffer.server.replies import Replies
from buffer.server.writer import Results, Writer
from buffer.storage.store import Store
from buffer.wire import messages
from buffer.wire.access import Access, allow_files
from buffer.wire.curve_keys import ServiceKeys
from buffer.wire.messages import DAMAGED, REQUESTS_IN_FLIGHT, ReceivedRequest
from buffer.wire.sockets import LARGE, Frame, bind, has_message, new_socket, receive_from_peer
from buffer.wire.traffic import CHECK_S, Limits
from r3l.errors import BufferError_, LimitExceeded, R3LError, RecordError, UserError
from r3l.records import Record
from r3l.run.config import RunConfig

CONNECTIONS = 1024  # most clients; never more than half of the files that may be open
FILES = 20_000  # open files, including those of connections without a finished handshake
POLL_MS = int(CHECK_S * 1000)
RECEIVE_AT_ONCE = 64
QUEUE_BYTES = 128 << 20  # of requests that wait for the writer
CONNECTION_BYTES = 4 * messages.MESSAGE_LIMIT  # unread, of one connection
TOTAL_BYTES = 256 << 20  # unread, of all connections
LINGER_MS = 2000
BACKLOG = 1024  # connections that the system holds until they are accepted
log = logging.getLogger(__name__)


def rules_of(config: RunConfig) -> Rules:
    """Returns what the service needs of a run's settings."""
    return Rules(
        config.buffer, config.learner.groups_per_step, config.seed, config.algorithm, config.model
    )


class Service:
    """The buffer service. Binds its address at creation. `run` serves until `stop`. `endpoint` has
    the bound port."""

    def __init__(
        self,
        store: Store,
        rules: Rules,
        address: str,
        keys: ServiceKeys | None = None,
    ) -> None:
        self.store = store
        self._context = zmq.Context()
        self._replies = Replies()
        self._router = new_socket(
            self._context,
            zmq.ROUTER,
            ROUTER_MANDATORY=1,  # without it replies to slow peers vanish silently
            SNDHWM=2 * REQUESTS_IN_FLIGHT,
            RCVHWM=64,
            MAXMSGSIZE=messages.MESSAGE_LIMIT,
            BACKLOG=BACKLOG,
            HEARTBEAT_IVL=2000,
            HEARTBEAT_TIMEOUT=20000,
        )
        limits = Limits(connection=CONNECTION_BYTES, total=TOTAL_BYTES)
        connections = min(CONNECTIONS, allow_files(FILES) // 2)
        self._access = Access(self._context, self._router, keys, connections, limits)
        self._refused = self._access.refused
        self._waiting: Counter[bytes] = Counter()  # requests without a reply, by client
        self._stop = threading.Event()
        self._failure: UserError | None = None  # why the writer ended
        self._checked: list[ReceivedRequest] = []  # for the writer, until it gets them together
        self._to_writer: SimpleQueue[ReceivedRequest | None] = SimpleQueue()
        self._to_reader: SimpleQueue[tuple[ReceivedRequest, Read] | None] = SimpleQueue()
        self._writer = Writer(store, rules, self._to_writer, self._refused)
        self._sent_bytes = 0  # of requests that were given to the writer
        self._memory = MemoryLimit(rules.buffer.memory_gib)
        self._router.copy_threshold = LARGE
        try:
            self.endpoint = bind(self._router, address, "bind")
        except UserError:
            self._router.close(linger=0)
            raise

    def stop(self) -> None:
        """Makes `run` end. A signal handler or any thread may call it."""
        self._stop.set()

    def run(self) -> None:
        """Serves until stopped, then replies to the received requests and closes the sockets."""
        threads = [  # daemons: if the front fails the process ends, and loses nothing acknowledged
            threading.Thread(target=self._run_writer, name="writer", daemon=True),
            threading.Thread(target=self._run_reader, name="reader", daemon=True),
        ]
        for thread in threads:
            thread.start()
        while not self._stop.is_set() and all(t.is_alive() for t in threads):
            self._front(receive=True)
        self._to_writer.put(None)
        while any(thread.is_alive() for thread in threads):
            self._front(receive=False)
        self._front(receive=False)
        self._access.close()
        self._router.close(linger=LINGER_MS)
        os.close(self._replies.ready)
        self._context.term()
        if self._failure is not None:
            raise self._failure
        if not self._stop.is_set():
            raise BufferError_("a thread of the buffer service ended unexpectedly; see its log")

    # ── front ───────────────────────────────────────────────────────────────────────────

    def _front(self, *, receive: bool) -> None:
        """Passes on messages and replies as they arrive."""
        sources = [(source, zmq.POLLIN) for source in (self._replies.ready, *self._access.sockets)]
        if receive:
            sources.append((self._router, zmq.POLLIN))
        ready = dict(zmq.zmq_poll(sources, POLL_MS))
        if self._access.is_due(ready):
            self._check_connections()
        self._replies.release_sent()
        if self._replies.ready in ready:
            self._send_replies()
        if self._router in ready:
            for _ in range(RECEIVE_AT_ONCE):
                received = receive_from_peer(self._router)
                self._access.traffic.mark_read(received)
                self._receive(received.client, received.role, received.frames)
                if not has_message(self._router):
                    break
            self._hand_over()

    def _check_connections(self) -> None:
        """Accepts or refuses connections. If memory exceeds its limit, shuts down the connection
        with the most unread and unsent bytes."""
        traffic, unsent = self._access.traffic, self._replies.unsent()
        self._access.update()
        if self._memory.exceeded(traffic.unread() + sum(unsent.values())):
            self._refused["too_much_memory"] += traffic.shut_down_largest(unsent)

    def _receive(self, client: bytes, role: str, frames: list[Frame]) -> None:
        """Checks one message, then passes it on or replies with an error."""
        rid = ""
        try:
            header = messages.read_header(frames)
            messages.check_sum(header, frames)
            rid = header["rid"]
            if self._waiting[client] >= REQUESTS_IN_FLIGHT:
                raise LimitExceeded(
                    f"this client already has {REQUESTS_IN_FLIGHT} requests waiting for replies, "
                    "which is the limit; receive some replies first"
                )
            request = messages.read_request(client, header, frames[1:])
            messages.check_role(request.operation, role)
            self._dispatch(request)
        except R3LError as error:
            if error.cause == DAMAGED:  # its client sends it again
                self._refused[DAMAGED] += 1
                return
            self._send(client, type(error).__name__, messages.error_frames(rid, error))
        except Exception as error:  # a hostile message must not end the service
            log.exception("a message could not be read")
            unreadable = RecordError(f"message: cannot be read ({error!r:.200})")
            self._send(client, "unreadable", messages.error_frames(rid, unreadable))

    def _dispatch(self, request: ReceivedRequest) -> None:
        if request.operation.thread == "reader":
            self._waiting[request.client] += 1
            handler = READ_HANDLERS[request.operation.name]
            self._to_reader.put((request, lambda txn: handler(txn, request.arguments)))
            return
        backlog = self._sent_bytes - self._writer.done_bytes
        if backlog > (QUEUE_BYTES if request.nbytes >= LARGE else 2 * QUEUE_BYTES):
            self._refused["dropped"] += 1  # its client sends it again
            return
        self._waiting[request.client] += 1
        self._sent_bytes += request.nbytes
        self._checked.append(request)

    def _hand_over(self) -> None:
        """Passes the checked requests to the writer all at once, for one transaction."""
        for request in self._checked:
            self._to_writer.put(request)
        self._checked.clear()

    def _send_replies(self) -> None:
        for client, error, frames in self._replies.take():
            self._waiting[client] -= 1
            if self._waiting[client] <= 0:
                del self._waiting[client]
            self._send(client, error, frames)

    def _send(self, client: bytes, error: str, frames: list[bytes]) -> None:
        if error:
            self._refused[error] += 1
        try:
            self._replies.send(client, frames, self._router)
        except zmq.ZMQError as failure:  # gone (EHOSTUNREACH) or too slow (EAGAIN)
            self._refused["undelivered"] += 1
            log.debug("a reply could not be delivered: %s", failure)

    # ── threads ─────────────────────────────────────────────────────────────────────────

    def _run_writer(self) -> None:
        try:
            self._writer.run(self._send_results)
        except UserError as error:
            self._failure = error
        self._to_reader.put(None)

    def _send_results(self, results: Results) -> None:
        for request, result in results:
            if isinstance(result, Record | R3LError):
                self._replies.put(request.client, request.rid, result)
            else:
                self._to_reader.put((request, result))
        self._replies.wake_front()

    def _run_reader(self) -> None:
        """Answers queries. Sends the groups of a draw once the draw is on disk."""
        while (item := self._to_reader.get()) is not None:
            request, read = item
            reply, groups = self._try_read(request, read)
            self._replies.put(request.client, request.rid, reply, groups)
            self._replies.wake_front()

    def _try_read(
        self, request: ReceivedRequest, read: Read
    ) -> tuple[Record | R3LError, list[bytes]]:
        try:
            self._replies.check_unsent(request.client)
            with self.store.read() as txn:
                return read(txn)
        except R3LError as error:
            return error, []
        except Exception as error:  # one bad query must not end the service
            log.exception("%s failed", request.operation.name)
            return BufferError_(f"internal: {error!r:.200}"), []
