"""The end of a learner whose launcher was killed.

The kernel tells a learner that r3l-launch started itself. DeepSpeed's launcher, which starts the
ranks of one with several, is told in their place and ends without a word to them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import psutil

from learner.run_files import LAUNCHER

LOOKS_S = 1.0


def stop_without_launcher(stop: Callable[[], None]) -> None:
    """Call `stop` from a thread when the launcher that the environment names has ended."""
    if (named := os.environ.get(LAUNCHER)) is None:
        return
    try:
        launcher = psutil.Process(int(named))
    except psutil.NoSuchProcess:
        stop()
        return

    def watch() -> None:
        while _runs(launcher):
            time.sleep(LOOKS_S)
        stop()

    threading.Thread(target=watch, name="launcher-watch", daemon=True).start()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
