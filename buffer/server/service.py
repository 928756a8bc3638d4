"""The service: one socket in front, a writer and two reading threads behind it.

    clients ══ROUTER══► front ──queue──► writer ──queue──► drawer (records of draws)
               ▲          │  ├──────────queue────────────────┘
               │          │  └──────────queue────────────► reader (queries)
               └──────────┴◄── replies of all three

The front checks messages and passes requests on. It refuses malformed, unknown and oversized
requests itself. It never stops reading its socket, because libzmq would keep unread messages in
memory. When too many bytes wait for the writer, it drops requests, large requests first. Their
clients send them again. It recognises requests that are sent again (buffer.server.repeats).
Requests that wait for the writer are taken in turns (buffer.server.fair_queue).
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Sequence

import zmq

from buffer.groups.unit_of_work import Rules
from buffer.server.fair_queue import FairQueue
from buffer.server.handlers import READ_HANDLERS
from buffer.server.memory_limit import MemoryLimit
from buffer.server.reader import Reader
from buffer.server.repeats import Known, Repeats
from buffer.server.replies import EncodedReply, Replies
from buffer.server.writer import Results, Writer
from buffer.storage.store import Store
from buffer.wire import messages
from buffer.wire.access import Access, allow_files
from buffer.wire.curve_keys import ServiceKeys
from buffer.wire.messages import DAMAGED, REQUESTS_IN_FLIGHT, ReceivedRequest
from buffer.wire.operations import OPERATIONS, Lease, Release, Thread
from buffer.wire.sockets import (
    LARGE,
    Frame,
    bind,
    has_message,
    new_socket,
    receive_from_peer,
    send_message,
)
from buffer.wire.traffic import CHECK_S, Limits
from r3l import codec
from r3l.errors import BufferError_, LimitExceeded, R3LError, RecordError, UserError
from r3l.records import Record
from r3l.run.config import RunConfig

CONNECTIONS = 4096  # most clients; never more than half of the files that may be open
FILES = 20_000  # open files, including those of connections without a finished handshake
POLL_MS = int(CHECK_S * 1000)
RECEIVE_AT_ONCE = 64
QUEUE_BYTES = 128 << 20  # of requests that wait for the writer
CONNECTION_BYTES = 4 * messages.MESSAGE_LIMIT  # unread, of one connection
TOTAL_BYTES = 256 << 20  # unread, of all connections
LINGER_MS = 2000
NOBODY = b""  # the client of requests of the service's own
BACKLOG = 1024  # connections that the system holds until they are accepted
log = logging.getLogger(__name__)


def rules_of(config: RunConfig) -> Rules:
    """Returns the parts of a run's settings that the service needs."""
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
        self._repeats = Repeats()
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
        if connections < CONNECTIONS:
            log.warning(
                "at most %d clients can connect, not %d: this process may open only %d files; "
                "raise its limit (ulimit -n)", connections, CONNECTIONS, 2 * connections
            )  # fmt: skip
        self._access = Access(self._context, self._router, keys, connections, limits)
        self._refused = self._access.refused
        self._waiting: Counter[bytes] = Counter()  # requests without a reply, by client
        self._stop = threading.Event()
        self._failure: UserError | None = None  # why the writer ended
        self._checked: list[ReceivedRequest] = []  # for the writer, until it gets them together
        self._to_writer = FairQueue()
        self._readers = {name: Reader(store, self._replies) for name in READ_HANDLERS}
        self._writer = Writer(store, rules, self._to_writer, self._refused, self._access.full_ago_s)
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
        runs = {"writer": self._run_writer} | {n: each.run for n, each in self._readers.items()}
        threads = [  # daemons: if the front fails the process ends, and loses nothing acknowledged
            threading.Thread(target=run, name=name, daemon=True) for name, run in runs.items()
        ]
        for thread in threads:
            thread.start()
        while not self._stop.is_set() and all(t.is_alive() for t in threads):
            self._front(receive=True)
        self._to_writer.end()
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
            total = messages.check_sum(header, frames)
            rid = header["rid"]
            operation = messages.operation_of(header)
            messages.check_role(operation, role)
            is_inquiry = messages.is_inquiry(header, frames)
            known = self._repeats.find((operation.name, rid), None if is_inquiry else total or 0)
            if known is not None and self._answer_again(known, client, rid):
                return
            if is_inquiry:
                sign = messages.BUSY if self._backlog > QUEUE_BYTES else messages.WANTED
                self._send(client, messages.sign_frames(rid, sign))
                return
            if self._waiting[client] >= REQUESTS_IN_FLIGHT:
                raise LimitExceeded(
                    f"this client already has {REQUESTS_IN_FLIGHT} requests waiting for replies, "
                    "which is the limit; receive some replies first"
                )
            self._dispatch(messages.read_request(client, header, frames[1:], total))
        except R3LError as error:
            if error.cause == DAMAGED:  # its client sends it again
                self._refused[DAMAGED] += 1
                return
            self._send(client, messages.error_frames(rid, error), type(error).__name__)
        except Exception as error:  # a hostile message must not end the service
            log.exception("a message could not be read")
            unreadable = RecordError(f"message: cannot be read ({error!r:.200})")
            self._send(client, messages.error_frames(rid, unreadable), "unreadable")

    def _answer_again(self, known: Known, client: bytes, rid: str) -> bool:
        """Answers a request that came before, or an inquiry about it. Returns False if the reply
        must be made again, because it was large and is no longer on its way."""
        if known.client is not None and known.client != client:  # from now on the reply goes here
            self._waiting[client] += 1
            self._answered(known.client)
            known.client = client
        if known.client is not None or self._replies.is_unsent(known.key, client):
            self._send(client, messages.sign_frames(rid, messages.BUSY))
            return True
        if known.frames:
            self._send(client, known.frames)
        return bool(known.frames)

    @property
    def _backlog(self) -> int:
        """Bytes of the requests that wait for the writer."""
        return self._sent_bytes - self._writer.done_bytes

    def _dispatch(self, request: ReceivedRequest) -> None:
        thread = request.operation.thread
        if (reader := self._readers.get(thread)) is not None:
            self._begin(request)
            handler = READ_HANDLERS[thread][request.operation.name]
            reader.put(request, lambda txn: handler(txn, request.arguments))
            return
        if self._backlog > (QUEUE_BYTES if request.nbytes >= LARGE else 2 * QUEUE_BYTES):
            self._refused["dropped"] += 1  # its client sends it again
            self._send(request.client, messages.sign_frames(request.rid, messages.BUSY))
            return
        self._begin(request)
        self._sent_bytes += request.nbytes
        self._checked.append(request)

    def _begin(self, request: ReceivedRequest) -> None:
        self._waiting[request.client] += 1
        self._repeats.begin(request)

    def _hand_over(self) -> None:
        """Passes the checked requests to the writer all at once, for one transaction."""
        if self._checked:
            self._to_writer.put(self._checked)
            self._checked.clear()

    def _send_replies(self) -> None:
        for reply in self._replies.take():
            client = self._repeats.end(reply.request, reply.frames)
            if client == NOBODY:
                continue
            self._answered(client)
            if reply.error:
                self._refused[reply.error] += 1
            try:
                self._replies.send(reply, client, self._router)
            except zmq.ZMQError as failure:
                self._undelivered(failure)
                self._give_back(reply)

    def _answered(self, client: bytes) -> None:
        """Counts one request fewer that this client waits for."""
        self._waiting[client] -= 1
        if self._waiting[client] <= 0:
            del self._waiting[client]

    def _send(self, client: bytes, frames: Sequence[Frame], error: str = "") -> None:
        """Sends a message of the front's own. `error`: the name under which it is counted."""
        if error:
            self._refused[error] += 1
        try:
            send_message(self._router, [client, *frames])
        except zmq.ZMQError as failure:
            self._undelivered(failure)

    def _give_back(self, reply: EncodedReply) -> None:
        """Releases a group that was leased to a client that is gone, so that others need not wait
        until the lease ends. If the client asks again after all, it gets another one."""
        request = reply.request
        if request.operation.name != "lease" or reply.error:
            return
        granted = codec.decode_one_of(request.operation.replies, reply.frames[1])
        if isinstance(granted, Lease):
            self._repeats.forget(request)
            release = Release((granted.group_id,), request.arguments.actor)
            own = ReceivedRequest(NOBODY, OPERATIONS["release"], request.rid, release)
            self._to_writer.put([own])

    def _undelivered(self, failure: zmq.ZMQError) -> None:
        """Counts a message whose client is gone (EHOSTUNREACH) or too slow (EAGAIN)."""
        self._refused["undelivered"] += 1
        log.debug("a reply could not be delivered: %s", failure)

    # ── threads ─────────────────────────────────────────────────────────────────────────

    def _run_writer(self) -> None:
        try:
            self._writer.run(self._send_results)
        except UserError as error:
            self._failure = error
        finally:
            self._writer.stop_archiving()  # before its caller closes the store
        for reader in self._readers.values():
            reader.stop()

    def _send_results(self, results: Results) -> None:
        for request, result in results:
            if isinstance(result, tuple):
                self._replies.put(request, *result)
            elif isinstance(result, Record | R3LError):
                self._replies.put(request, result)
            else:  # a draw waits for no archive
                name: Thread = "drawer" if request.operation.name == "draw" else "reader"
                self._readers[name].put(request, result)
        self._replies.wake_front()
