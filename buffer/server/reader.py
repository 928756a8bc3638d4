"""A reading thread: answers requests from the store, one after the other.

    front, writer ──queue──► Reader ──► Replies

The service has two: `drawer` sends the records of draws, `reader` answers everybody's queries. So a
learner never waits for a query.
"""

import logging
from queue import SimpleQueue

from buffer.server.handlers import Answer, Read
from buffer.server.replies import Replies
from buffer.storage.store import Store
from buffer.wire.messages import ReceivedRequest
from r3l.errors import BufferError_, R3LError

log = logging.getLogger(__name__)


class Reader:
    """Answers the requests that are put to it. `run` ends after `stop`."""

    def __init__(self, store: Store, replies: Replies) -> None:
        self._store, self._replies = store, replies
        self._queue: SimpleQueue[tuple[ReceivedRequest, Read] | None] = SimpleQueue()

    def put(self, request: ReceivedRequest, read: Read) -> None:
        self._queue.put((request, read))

    def stop(self) -> None:
        """Makes `run` end once it has answered the requests that were put before."""
        self._queue.put(None)

    def run(self) -> None:
        while (item := self._queue.get()) is not None:
            request, read = item
            found = self._try_read(request, read)
            if isinstance(found, R3LError):
                self._replies.put(request, found)
            else:
                self._replies.put(request, *found)
            self._replies.wake_front()

    def _try_read(self, request: ReceivedRequest, read: Read) -> Answer | R3LError:
        try:
            self._replies.check_unsent(request.client)
            with self._store.read() as txn:
                return read(txn)
        except R3LError as error:
            return error
        except Exception as error:  # one bad query must not end the service
            log.exception("%s failed", request.operation.name)
            return BufferError_(f"internal: {error!r:.200}")
