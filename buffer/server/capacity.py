"""Refuses new results when the disk or LMDB's map is nearly full, to keep space for other writes.

LMDB's file never shrinks. Eviction only frees pages inside it. So once the map is nearly full, the
store may not hold more bytes of results than it holds at that moment.
"""

from buffer.storage.store import Store
from r3l.run.process.free_space import DISK_FLOOR

RESERVE = 64 << 20  # bytes of the map for other writes than results; an eighth of a small map


class Capacity:
    """Checks the free space of a store. `floor`: bytes of the disk to keep free."""

    def __init__(self, store: Store, floor: int = DISK_FLOOR) -> None:
        self.store, self.floor = store, floor
        self._limit: int | None = None  # bytes of results held when the map was nearly used up

    def refusal(self, held: int) -> str:
        """Returns why new results are refused now, or "". `held`: bytes of all stored results."""
        free = self.store.free_bytes
        if free < self.floor:
            return f"its disk has {free >> 20} MiB left, but {self.floor >> 20} MiB must stay free"
        if self.store.map_free_bytes >= min(RESERVE, self.store.map_bytes // 8):
            self._limit = None
            return ""
        if self._limit is None:
            self._limit = held
        return "" if held < self._limit else self.store.map_used_up
