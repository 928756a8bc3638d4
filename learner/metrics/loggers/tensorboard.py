"""Writes TensorBoard's files: curves, histograms, settings.

A removed folder or a full disk never ends a run. A failed write causes a notice. All writes in the
next AGAIN_S are lost; then new files are begun.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from learner.metrics.loggers.logger import Logger, LoggerContext
from r3l.notices import notice_again

log = logging.getLogger(__name__)
AGAIN_S = 60.0  # between two attempts to write
OF_RETRIES = ("_retry", "_distilled")
"""Tags with these suffixes are written as a second run, `retry`, which has another colour."""
RUN, RETRIES = "", "retry"
"""The folders of the run and of its retries, below the logger's folder."""
COMPARED = (
    "algorithm.name", "learner.lr", "model", "env.name", "seed", "actor.temperature",
    "buffer.max_staleness", "buffer.sampler.name", "learner.steps", "learner.groups_per_step",
    "learner.schedule",
)  # fmt: skip
RESULT = "eval/success"
"""The metric that the "HParams" page shows for each run, with its last value."""


class TensorBoard(Logger):
    """Writes a run's `tensorboard` folder. In a resumed run, hides the steps above `context.start`
    that an earlier learner wrote."""

    package = "tensorboard"

    def __init__(self, context: LoggerContext) -> None:
        self.folder, self._start = context.run / "tensorboard", context.start
        self._settings = hyperparameters(context.settings)
        self._writers: dict[str, SummaryWriter] = {}  # by RUN and RETRIES
        self._again_at = 0.0
        self._write(lambda: None)

    def scalars(self, version: int, metrics: Mapping[str, float]) -> None:
        """Writes metrics as curves: `eval/` always, other metrics only if `shows(version)`."""
        if not shows(version):
            metrics = {tag: value for tag, value in metrics.items() if tag.startswith("eval/")}

        def write() -> None:
            for tag, value in metrics.items():
                name = RETRIES if tag.endswith(OF_RETRIES) else RUN
                self._writer(name).add_scalar(tag, value, version)

        self._write(write)

    def histograms(self, version: int, histograms: Mapping[str, Any]) -> None:
        """Writes arrays as histograms, if `shows(version)`."""
        if not shows(version):
            return

        def write() -> None:
            for tag, values in histograms.items():
                self._writer(RUN).add_histogram(tag, values, version)

        self._write(write)

    def close(self) -> None:
        """Writes all buffered data, and marks the run as ended."""

        def write() -> None:
            self._writer(RUN).file_writer.add_summary(self._hparams()[2])
            for writer in self._writers.values():
                writer.flush()

        self._write(write)
        self._drop()

    def _write(self, write: Callable[[], None]) -> None:
        if time.monotonic() < self._again_at:
            return
        try:
            self._open()
            write()
        except OSError as error:  # perhaps an earlier failure of TensorBoard's thread
            notice_again("tensorboard", f"{self.folder} could not be written ({error})")
            self._drop()
            self._again_at = time.monotonic() + AGAIN_S

    def _open(self) -> None:
        """Opens the run's writer, a new one if the files were removed. Opens the writer of retries
        if an earlier learner had one, so that its later steps are hidden."""
        if self._writers and not any(self.folder.glob("events.*")):
            log.warning("%s: was removed; new files are started, training continues", self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)  # for what the old writer has buffered
            self._drop()
        if self._writers:
            return
        writer = self._writer(RUN)
        for summary in self._hparams()[:2]:
            writer.file_writer.add_summary(summary)
        if self._start and (self.folder / RETRIES).is_dir():
            self._writer(RETRIES)

    def _writer(self, name: str) -> SummaryWriter:
        """Returns the writer of RUN or RETRIES. Opens it at its first use: a run without retries
        has no empty run beside it."""
        if name not in self._writers:
            purge = self._start + 1 if self._start else None
            folder = str(self.folder / name)
            self._writers[name] = SummaryWriter(folder, purge_step=purge, flush_secs=5)
        return self._writers[name]

    def _hparams(self) -> tuple[Any, Any, Any]:
        """Returns the "HParams" summaries of the experiment, the run's start and the run's end."""
        summaries: tuple[Any, Any, Any] = hparams(self._settings, {RESULT: 0.0})
        return summaries

    def _drop(self) -> None:
        for writer in self._writers.values():
            with suppress(OSError):
                writer.close()
        self._writers = {}


def shows(version: int) -> bool:
    """Returns whether the curves have a point at `version`. From 10,000 on, only every tenth
    version has a point. From 100,000 on, only every hundredth, and so on."""
    every: int = 10 ** max(len(str(version)) - 4, 0)  # TensorBoard draws only 1,000 points a curve
    return version % every == 0


def hyperparameters(settings: Mapping[str, str | float | bool]) -> dict[str, str | float | bool]:
    """Selects the settings in COMPARED, then all settings of the algorithm, keyed by full name."""
    names = (*COMPARED, *(name for name in settings if name.startswith("algorithm.")))
    return {name: settings[name] for name in names if name in settings}
