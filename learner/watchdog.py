"""Records the learner's heartbeats, and ends the process when they stop.

    heartbeat("micro-batch 3 of 8") ─► watchdog thread ─┬─► run/.last-heartbeat ─► r3l-launch
                                                        └─► none for `limit_s`: LearnerHung

The learner sends a heartbeat when it begins a piece of work, and regularly while it waits. So
`limit_s` limits one piece of work. The watchdog thread itself cannot run in a process that is
stopped, waits in the kernel or holds the interpreter's lock. The launcher ends such a process.
"""

import contextlib
import faulthandler
import os
import threading
import time
from pathlib import Path
from typing import Self

from learner.exit_codes import EXIT_CODES, STACKS
from r3l.errors import LearnerHung
from r3l.run.files.run_folder import RunFolder

STDERR = 2  # not sys.stderr, whose lock the hung thread may hold
LONGEST_TICK_S = 1.0


class Watchdog:
    """Watches this process inside a `with` block. After `limit_s` seconds without a heartbeat,
    prints all stacks and exits with LearnerHung's code. If `folder` is given, writes heartbeats to
    that run folder."""

    def __init__(self, limit_s: float, folder: Path | None = None) -> None:
        self.limit_s = limit_s
        self._folder = RunFolder(folder) if folder else None
        self._began = time.monotonic()
        self._last = ("to start", self._began)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        global _watchdog
        faulthandler.register(STACKS, STDERR, all_threads=True)
        _watchdog = self
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        global _watchdog
        _watchdog = None
        self._ended.set()
        self._thread.join()

    def heartbeat(self, doing: str) -> None:
        """Records that this process is alive and is starting the activity `doing`."""
        self._last = (doing, time.monotonic())

    def _watch(self) -> None:
        written = self._began  # no file before the first heartbeat: the run folder may be refused
        while not self._ended.wait(min(LONGEST_TICK_S, self.limit_s / 10)):
            doing, since = self._last
            silent = time.monotonic() - since
            if silent > self.limit_s:
                self._end(doing, silent)
            if self._folder is not None and since != written:
                with contextlib.suppress(OSError):  # the file's time is new even on a full disk
                    self._folder.write_heartbeat(doing)
                written = since

    def _end(self, doing: str, silent: float) -> None:
        rank = os.environ.get("RANK", "0")
        error = LearnerHung(
            f"rank {rank} sent no heartbeat for {silent:.0f} s (learner.hang_s) since it began "
            f"{doing}; it exits now; the stacks of all threads follow"
        )
        try:
            os.write(STDERR, f"\nr3l-learner hangs: {error}\n".encode())
            faulthandler.dump_traceback(STDERR, all_threads=True)
        finally:
            os._exit(EXIT_CODES[LearnerHung])  # the hung thread would never return


_watchdog: Watchdog | None = None
"""The watchdog of this process; None outside its `with` block."""


def heartbeat(doing: str) -> None:
    """Tells the watchdog that this process is alive and is starting the activity `doing`."""
    if _watchdog is not None:
        _watchdog.heartbeat(doing)
