"""Uploads beside training: folders of the run go to `learner.upload.to` in a thread.

    checkpoints/step-000050 ─► .uploading-step-000050 (hard links) ─► target ─► removed

The links keep the files while the run removes or replaces the folder. A target that is slow or
fails delays nothing: of each kind of folder only the newest waits.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from learner.checkpoint import CHECKPOINTS
from learner.outputs.best_model import BEST
from learner.outputs.upload_targets import Target, target_of
from r3l.process.notices import notice
from r3l.settings.uploading import UploadConfig

log = logging.getLogger(__name__)
ROUND_S = 1.0
STOPPED_S = 5.0
"""How long a run that was asked to end waits: all its processes have 30 s."""
UPLOADING = ".uploading-"


class Uploader:
    """Sends folders to a target, in a thread.

    `failed`: uploads that failed so far. The first failure is said at once, and others only after
    an upload that succeeded.
    """

    def __init__(self, target: Target, address: str) -> None:
        self.failed = 0
        self._target, self._address = target, address
        self._waiting: dict[str, tuple[Path, str]] = {}
        self._changed = threading.Condition()
        self._under_way = ""
        self._closed, self._said = False, False
        self._thread = threading.Thread(target=self._work, name="uploader", daemon=True)
        self._thread.start()

    def submit(self, folder: Path, name: str) -> None:
        """Upload a folder of the run as `name`, later. It replaces one of the same kind, such as an
        earlier checkpoint, that still waits."""
        place = folder.resolve()  # `best` may be a link to another disk
        links = place.with_name(f"{UPLOADING}{place.name}-{time.monotonic_ns()}")
        try:
            shutil.copytree(place, links, copy_function=_link)
        except (OSError, shutil.Error) as error:
            shutil.rmtree(links, ignore_errors=True)
            self._fail(name, error)
            return
        kind = name.partition("/")[0]
        with self._changed:
            earlier = self._waiting.pop(kind, None)
            self._waiting[kind] = (links, name)
            self._changed.notify_all()
        if earlier:
            log.warning("upload: %s is left out, %s is newer", earlier[1], name)
            shutil.rmtree(earlier[0], ignore_errors=True)

    def finish(self, wait_s: float, stopped: Callable[[], bool]) -> bool:
        """Wait until everything was tried once, for `wait_s` seconds at most; whether it was.

        `stopped` is called every ROUND_S; True leaves STOPPED_S from the first time on.
        """
        if left := self._left():
            notice(f"upload: waits up to {wait_s:g} s for {', '.join(left)}")
        deadline = time.monotonic() + wait_s
        shortened = False
        while self._left() and time.monotonic() < deadline:
            if stopped() and not shortened:
                shortened, deadline = True, min(deadline, time.monotonic() + STOPPED_S)
            with self._changed:
                if self._waiting or self._under_way:
                    self._changed.wait(ROUND_S)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if left := self._left():
            notice(f"upload: {', '.join(left)} did not get to {self._address} in time")
            return False
        self._thread.join(ROUND_S)
        return True

    def _left(self) -> list[str]:
        with self._changed:
            names = [self._under_way, *(name for _, name in self._waiting.values())]
            return [name for name in names if name]

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                links, name = self._waiting.pop(next(iter(self._waiting)))
                self._under_way = name
            try:
                self._target.send(links, name)
            except Exception as error:  # each file system has errors of its own
                self._fail(name, error)
            else:
                self._said = False
                log.info("upload: %s is at %s", name, self._address)
            shutil.rmtree(links, ignore_errors=True)
            with self._changed:
                self._under_way = ""
                self._changed.notify_all()

    def _fail(self, name: str, error: Exception) -> None:
        self.failed += 1
        log.warning("upload of %s to %s failed (%s)", name, self._address, error)
        if not self._said:
            self._said = True
            notice(
                f"upload: {name} could not be copied to {self._address} ({error}); training goes "
                "on, the next checkpoint is tried"
            )


def begin(config: UploadConfig, run: Path) -> Uploader | None:
    """The uploader of a run, if it asks for one. Links that a killed learner left are removed."""
    for parent in {run, run / CHECKPOINTS, (run / BEST).resolve().parent}:
        for left in parent.glob(f"{UPLOADING}*"):
            shutil.rmtree(left, ignore_errors=True)
    return Uploader(target_of(config.to), config.to) if config.to else None


def _link(source: str, target: str) -> None:
    """A hard link; a copy on file systems without."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
