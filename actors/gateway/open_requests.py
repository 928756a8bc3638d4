"""Tells a repeated request from a new request with equal content.

An agent may ask the same question several times at once, to take a majority vote: each request then
gets its own reply. A client that gave up waiting may ask again: it gets the reply to its first
request. A request is a repetition if its client says so, or if a client that sent an equal request
has disconnected without its answer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from actors.dialects.chat_completions import Answer
from actors.gateway.call_tree import Node

Gone = Callable[[], bool]
"""Returns whether the client of a request has disconnected."""


@dataclass(eq=False)
class OpenRequest:
    """A request and the task that answers it. `clients`: those that wait for the answer."""

    node: Node
    answering: asyncio.Task[Answer]
    clients: list[Gone] = field(default_factory=list)

    def waiting(self) -> int:
        """Returns how many clients are still there."""
        self.clients = [gone for gone in self.clients if not gone()]
        return len(self.clients)

    @property
    def failed(self) -> bool:
        task = self.answering
        return task.done() and (task.cancelled() or task.exception() is not None)


class OpenRequests:
    """The requests of an attempt, keyed by the hash of their bodies. Among answered requests with
    the same hash, keeps only the newest."""

    def __init__(self) -> None:
        self._of: dict[str, list[OpenRequest]] = {}

    def repeated(self, body_hash: str, *, again: bool) -> OpenRequest | None:
        """Returns the earlier request that a request with this hash repeats, or None if it is new.

        `again`: the client says that it repeats a request. Returns the first unanswered request
        whose clients have all disconnected. If there is none, and only with `again`, returns the
        unanswered request for which the fewest clients wait, or else the newest answered one:
        behind a proxy, clients may only seem to be connected. Never returns a request that failed.
        """
        known = [each for each in self._of.get(body_hash, ()) if not each.failed]
        unanswered = [each for each in known if not each.node.seen]
        left = next((each for each in unanswered if not each.waiting()), None)
        if left or not again:
            return left
        if unanswered:
            return min(unanswered, key=OpenRequest.waiting)
        return known[-1] if known else None

    def add(self, body_hash: str, request: OpenRequest) -> None:
        before = self._of.get(body_hash, ())
        self._of[body_hash] = [each for each in before if not each.node.seen] + [request]

    def received(self, answering: asyncio.Task[Answer]) -> None:
        """Notes that a client got the answer of a task."""
        for requests in self._of.values():
            for each in requests:
                each.node.seen = each.node.seen or each.answering is answering

    def cancel(self) -> None:
        """Ends the tasks of all requests without an answer."""
        for requests in self._of.values():
            for each in requests:
                each.answering.cancel()
