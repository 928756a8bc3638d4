"""The learner's sign of life: a process that gives none for too long is hung, and is ended.

    sign("micro-batch 3 of 8") ─► watchdog thread ─┬─► .last-sign in the run folder ─► r3l-launch
                                                   └─► none for `limit_s`: LearnerHung

Every piece of work gives a sign when it begins, every wait one at each of its rounds, so what is
limited is the longest piece, not a step or a wait for actors as a whole. The thread ends a process
whose work does not come back; one that is stopped, or waits in the kernel, or keeps the
interpreter to itself runs no thread: its launcher misses the sign and ends it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import threading
import time
from pathlib import Path
from typing import Self

from learner.run_files import HANGS, HANGS_LINE, LAST_SIGN, STACKS
from r3l.errors import LearnerHung

STDERR = 2  # not sys.stderr, which the hung thread may hold
LONGEST_TICK_S = 1.0


class Watchdog:
    """Watches this process from `with` to its end.

    `limit_s`: seconds without a sign until the process ends, with LearnerHung and all stacks in
    its log. `folder`: where the last sign is written, for the launcher.
    """

    def __init__(self, limit_s: float, folder: Path | None = None) -> None:
        self.limit_s = limit_s
        self._file = folder / LAST_SIGN if folder else None
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

    def sign(self, doing: str) -> None:
        """This process lives, and does `doing` from now on."""
        self._last = (doing, time.monotonic())

    def _watch(self) -> None:
        written = self._began  # nothing before it is known that the run can be had
        while not self._ended.wait(min(LONGEST_TICK_S, self.limit_s / 10)):
            doing, since = self._last
            silent = time.monotonic() - since
            if silent > self.limit_s:
                self._end(doing, silent)
            if self._file is not None and since != written:
                # Without room on the disk the file is empty, but new: that is a sign too.
                with contextlib.suppress(OSError):
                    self._file.write_text(doing, encoding="utf-8")
                written = since

    def _end(self, doing: str, silent: float) -> None:
        rank = os.environ.get("RANK", "0")
        error = LearnerHung(
            f"rank {rank} gave no sign of life for {silent:.0f} s (learner.hang_s) since it began "
            f"{doing}; it ends here, with what every thread was doing:"
        )
        try:
            os.write(STDERR, f"\n{HANGS_LINE}: {error}\n".encode())
            faulthandler.dump_traceback(STDERR, all_threads=True)
        finally:
            os._exit(1)  # the hung thread would never unwind


_watchdog: Watchdog | None = None
"""Of this process, where one watches it."""


def sign(doing: str) -> None:
    """This process lives, and does `doing` from now on."""
    if _watchdog is not None:
        _watchdog.sign(doing)


def note_hang(run: Path, doing: str, ended_by: str) -> None:
    """Remember in the run folder that the learner hung while it was `doing` something."""
    line = {"time": time.time(), "doing": doing, "ended_by": ended_by}
    with (run / HANGS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def count_hangs(run: Path) -> int:
    """How often the learner of this run hung."""
    path = run / HANGS
    return len(path.read_bytes().splitlines()) if path.is_file() else 0
