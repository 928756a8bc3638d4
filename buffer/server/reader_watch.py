"""Detects long-lived LMDB read transactions.

Pages that are freed during a read transaction cannot be reused until it ends, so writing to the
store makes its file grow meanwhile. The service cannot close a transaction of another process: it
logs the process, and `stats` shows the transaction's age.
"""

from __future__ import annotations

import logging

from buffer.storage.store import Store

WARN_S = 600.0  # age at which a transaction is logged, and again each time it has doubled
log = logging.getLogger(__name__)


class ReaderWatch:
    """Tracks the ages of the read transactions that were open at the last `update`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since: dict[tuple[int, int], float] = {}  # by (process, transaction it reads)
        self._warn_at: dict[tuple[int, int], float] = {}

    def update(self, now: float) -> None:
        """Note which read transactions are open at `now`, a time of the steady clock."""
        self._store.clear_readers()
        self._since = {reader: self._since.get(reader, now) for reader in self._store.readers()}
        self._warn_at = {r: at for r, at in self._warn_at.items() if r in self._since}
        for reader, since in self._since.items():
            age = now - since
            if age >= self._warn_at.get(reader, WARN_S):
                self._warn_at[reader] = 2 * age
                log.warning(
                    "process %d has had a read transaction open for %.0f s; pages freed since "
                    "cannot be reused until it ends", reader[0], age,
                )  # fmt: skip

    def oldest_s(self, now: float) -> float:
        """Return the age of the oldest read transaction, in seconds; 0 if there is none."""
        return now - min(self._since.values(), default=now)
