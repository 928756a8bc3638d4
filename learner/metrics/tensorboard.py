"""TensorBoard's files, whose loss never ends a run.

A removed folder or a full disk costs what would have been written: it is said once, and after a
while the files are begun again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from learner.metrics.tags import check_tag
from r3l.process.notices import notice_again

log = logging.getLogger(__name__)
AGAIN_S = 60.0  # between two attempts to write


class TensorBoard:
    """Writes scalars and histograms below `folder`. Steps after `start` that an earlier learner
    wrote are dropped there."""

    def __init__(self, folder: Path, start: int = 0) -> None:
        self.folder, self._start = folder, start
        self._writer: SummaryWriter | None = None
        self._again_at = 0.0
        self._write(lambda writer: None)

    def scalars(self, version: int, metrics: dict[str, float]) -> None:
        """Write metrics; every tag must be in learner.metrics.tags."""
        for tag in metrics:
            check_tag(tag)

        def write(writer: SummaryWriter) -> None:
            for tag, value in metrics.items():
                writer.add_scalar(tag, value, version)

        self._write(write)

    def histograms(self, version: int, histograms: dict[str, Any]) -> None:
        """Write values whose distribution is of interest."""
        for tag in histograms:
            check_tag(tag)

        def write(writer: SummaryWriter) -> None:
            for tag, values in histograms.items():
                writer.add_histogram(tag, values, version)

        self._write(write)

    def close(self) -> None:
        """Flush everything."""
        self._write(lambda writer: writer.flush())
        self._drop()

    def _write(self, write: Callable[[SummaryWriter], None]) -> None:
        if time.monotonic() < self._again_at:
            return
        try:
            write(self._open())
        except OSError as error:  # also what TensorBoard's thread failed with before
            log.warning("%s: not written, training goes on (%s)", self.folder, error)
            notice_again("tensorboard", f"{self.folder} could not be written ({error})")
            self._drop()
            self._again_at = time.monotonic() + AGAIN_S

    def _open(self) -> SummaryWriter:
        """The writer; a new one if its files were removed."""
        if self._writer is not None and not any(self.folder.glob("events.*")):
            log.warning("%s: was removed; it is begun again, training goes on", self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)  # for what the old writer still holds
            self._drop()
        if self._writer is None:
            purge = self._start + 1 if self._start else None
            self._writer = SummaryWriter(str(self.folder), purge_step=purge, flush_secs=5)
        return self._writer

    def _drop(self) -> None:
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
        self._writer = None
