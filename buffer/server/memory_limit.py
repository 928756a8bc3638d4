"""The memory that messages on their way may take, however they are cut into frames.

A frame costs 64 bytes of memory, and an empty one 2 bytes on the wire: counting bytes
(buffer.wire.traffic) does not bound memory, so the service also looks at the memory it has.
"""

from __future__ import annotations

from r3l.process.memory import private_bytes, return_freed_memory

TRIMS = 40  # looks, two seconds
LITTLE = 1 << 20  # bytes on their way that do not matter


class MemoryLimit:
    """`gib`: memory beyond what the process has while little is on its way."""

    def __init__(self, gib: float) -> None:
        self._limit = int(gib * (1 << 30))
        self._at_rest = private_bytes()
        self._to_trim = 0  # times, since libzmq frees what a closed connection had bit by bit

    def exceeded(self, on_their_way: int) -> bool:
        """Whether the process has more than its limit. `on_their_way`: bytes of messages that
        came and were not taken, and of replies that were not sent."""
        if private_bytes() - self._at_rest > self._limit:
            self._to_trim = TRIMS
        if self._to_trim:
            self._to_trim -= 1
            return_freed_memory()
        now = private_bytes()
        if on_their_way < LITTLE:
            self._at_rest = now
        return now - self._at_rest > self._limit
