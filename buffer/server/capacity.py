"""Capacity for new results, on the disk and in LMDB's map.

New results are refused before either is used up, so that draws, commits and eviction, which write
a few pages, go on. The file never shrinks, it reuses its pages: once the map is nearly used up, the
store takes new results only while it holds less than it did then.
"""

from __future__ import annotations

from buffer.storage.store import Store
from r3l.process.free_space import DISK_FLOOR

RESERVE = 64 << 20  # bytes of the map kept for what is not a result, an eighth of a small map


class Capacity:
    """`floor`: bytes of the disk that are kept free."""

    def __init__(self, store: Store, floor: int = DISK_FLOOR) -> None:
        self.store, self.floor = store, floor
        self._most: int | None = None  # bytes of results held when the map was nearly used up

    def refusal(self, held: int) -> str:
        """Why new results are refused now, or "". `held`: bytes of all results in the store."""
        free = self.store.free_bytes
        if free < self.floor:
            return f"{free >> 20} MiB are left on its disk, it keeps {self.floor >> 20} free"
        if self.store.map_free_bytes >= min(RESERVE, self.store.map_bytes // 8):
            self._most = None
            return ""
        if self._most is None:
            self._most = held
        if held < self._most:
            return ""
        return self.store.map_used_up
