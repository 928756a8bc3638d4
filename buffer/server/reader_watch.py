"""Who looks into the store for long?

An open view keeps every page freed since from being used again, so beside a writing service the
file grows for as long as the view lasts. A view belongs to another process and cannot be closed
from here; it is named in the log and its age stands in `stats`.
"""

from __future__ import annotations

import logging

from buffer.storage.store import Store

WARN_S = 600.0  # age of a view worth a line in the log, every time it has doubled
log = logging.getLogger(__name__)


class Views:
    """Ages of the open views, as far as `look` was there to see them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since: dict[tuple[int, int], float] = {}  # (process, transaction it sees)
        self._warn_at: dict[tuple[int, int], float] = {}

    def look(self, now: float) -> None:
        """Note which views are open at `now`, in seconds of a steady clock."""
        self._store.clear_readers()
        self._since = {view: self._since.get(view, now) for view in self._store.readers()}
        self._warn_at = {v: at for v, at in self._warn_at.items() if v in self._since}
        for view, since in self._since.items():
            age = now - since
            if age >= self._warn_at.get(view, WARN_S):
                self._warn_at[view] = 2 * age
                log.warning(
                    "process %d has looked into the store at one moment for %.0f s; pages freed "
                    "since cannot be used again until it ends", view[0], age,
                )  # fmt: skip

    def oldest_s(self, now: float) -> float:
        """Age of the oldest view, in seconds; 0 for none."""
        return now - min(self._since.values(), default=now)
