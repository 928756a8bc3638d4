"""Limits the memory of messages in transit. buffer.wire.traffic limits only bytes on the wire. An
empty frame takes 2 bytes on the wire, but 64 bytes in memory."""

from r3l.run.process.memory import private_bytes, return_freed_memory
from r3l.text import GIB

TRIMS = 40  # checks that also return freed memory, two seconds
LITTLE = 1 << 20  # bytes in transit that do not matter


class MemoryLimit:
    """Checks that the process takes at most `gib` GiB more memory than at low traffic."""

    def __init__(self, gib: float) -> None:
        self._limit = int(gib * GIB)
        self._at_rest = private_bytes()
        self._to_trim = 0  # checks: libzmq frees a closed connection's memory gradually

    def exceeded(self, in_transit: int) -> bool:
        """Returns whether the process exceeds its memory limit. `in_transit`: bytes of unread
        messages and of unsent replies."""
        if private_bytes() - self._at_rest > self._limit:
            self._to_trim = TRIMS
        if self._to_trim:
            self._to_trim -= 1
            return_freed_memory()
        now = private_bytes()
        if in_transit < LITTLE:
            self._at_rest = now
        return now - self._at_rest > self._limit
