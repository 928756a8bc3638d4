"""Moves closed groups from the store to an archive, so that the store's file stays small.

    writer: choose groups that are due ─► write down which (`archiving`)
    thread:     read, write a file, read it back, compare
    writer: write down where each group is, delete its record ─► choose the next ones

Nothing is deleted before its copy was compared. If the service is killed at any moment, the same
groups are archived again, in a file of the same name. A failure is named, counted and tried again
after RETRY_S; meanwhile the groups stay in the store.
"""

import logging
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.archive_files import Archive
from buffer.storage.store import Store
from buffer.storage.stored_rows import ArchivePlace, GroupRow
from r3l.errors import R3LError, StoreError
from r3l.notices import notice_again

FILE_BYTES = 32 << 20  # of records in a file
FILE_GROUPS = 4096
WAIT_S = 3600.0  # after which a smaller file is made
RETRY_S = 60.0
READING_S = 10.0  # how long the end of the service waits for a read
log = logging.getLogger(__name__)

Made = dict[str, ArchivePlace]


class Archiver:
    """The archiving of one store. The writer calls `tick` in its transactions."""

    def __init__(self, store: Store, archive: Archive) -> None:
        self._store, self._archive = store, archive
        self._busy = self._stopped = False
        self._next = 0.0
        self._damaged: set[str] = set()  # whose records cannot be read
        self._reading = threading.Lock()
        self._jobs: SimpleQueue[tuple[str, ...] | None] = SimpleQueue()
        self._results: SimpleQueue[Made | StoreError] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="archiver", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread's use of the store. An upload under way continues on its own."""
        self._stopped = True
        self._jobs.put(None)
        if self._reading.acquire(timeout=READING_S):
            self._reading.release()

    # ── in the writer's transactions ────────────────────────────────────────────────────

    def tick(self, work: UnitOfWork) -> None:
        """Records what the thread has archived, and gives the thread the next groups that are
        due."""
        if work.txn.archive() != self._archive.address:
            work.txn.put_archive(self._archive.address)
        while not self._results.empty():
            self._take(work, self._results.get())
        now = time.monotonic()
        if self._busy or now < self._next:
            return
        if intent := work.txn.archiving():  # of an earlier transaction, so it is on disk
            self._busy = True
            self._jobs.put(intent)
            return
        if chosen := _chosen(work, self._damaged):
            work.txn.put_archiving(chosen)
        else:  # looking takes at most 1 % of the time
            self._next = now + max(1.0, 100 * (time.monotonic() - now))

    def _take(self, work: UnitOfWork, made: Made | StoreError) -> None:
        self._busy = False
        if isinstance(made, StoreError):
            self._next = time.monotonic() + RETRY_S
            work.count(f"archive_failed/{made.facts.get('kind', 'unreachable')}")
            notice_again("archive", f"groups are not archived, and stay in the store: {made}")
            return
        for group_id, place in made.items():
            row = work.find(group_id)
            if row is not None and row.closed and row.archived is None:
                work.archive(row, place)
        work.txn.put_archiving(())

    # ── in the thread ───────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while (names := self._jobs.get()) is not None and not self._stopped:
            try:
                found = list(self._read(names))
                self._results.put(self._archive.add(found) if found else {})
            except StoreError as error:
                log.warning("%s", error)
                self._results.put(error)
            except Exception as error:  # the thread must not end
                log.exception("groups could not be archived")
                self._results.put(StoreError(f"archive: {error!r:.200}", kind="internal"))

    def _read(self, names: tuple[str, ...]) -> Iterator[tuple[GroupRow, bytes]]:
        """Yields the groups that are still there. Each is read in a short view."""
        for name in names:
            with self._reading:
                if self._stopped:
                    raise StoreError("the service ends", kind="stopped")
                try:
                    with self._store.read() as txn:
                        row = txn.row(name)
                        if row is None or not row.closed or row.archived:
                            continue
                        found = row, txn.record(name)
                except R3LError as error:
                    self._damaged.add(name)
                    log.warning("group %s stays in the store: %s", name, error)
                    continue
            yield found


def _chosen(work: UnitOfWork, damaged: set[str]) -> tuple[str, ...]:
    """Returns the groups of the next file, oldest first. Returns none if there are too few and none
    has waited long."""
    names, size, oldest = list[str](), 0, work.now
    for row in _due(work, damaged):
        names.append(row.group_id)
        size += row.nbytes
        oldest = min(oldest, row.times[row.state])
        if size >= FILE_BYTES or len(names) >= FILE_GROUPS:
            return tuple(names)
    waited = work.now - oldest - work.config.retention.grace_s
    return tuple(names) if waited >= WAIT_S else ()


def _due(work: UnitOfWork, damaged: set[str]) -> Iterator[GroupRow]:
    """Yields the closed groups whose grace is over and that no draw can need, oldest first."""
    grace_s, reuse = work.config.retention.grace_s, work.config.sampler.reuse
    fresh_enough = work.index.progress.version - work.config.replay_limit
    for key in work.txn.keys("group"):
        name = key.decode()
        if name in work.index.live or name in damaged:
            continue
        row = work.txn.existing_row(name)
        if work.now - min(row.times.values()) < grace_s:  # as are all that were made later
            return
        drawable = row.source or row.oldest_version >= fresh_enough
        if row.state == "trained" and row.uses < reuse and drawable:
            continue
        if row.closed and work.now - row.times[row.state] >= grace_s:
            yield row
