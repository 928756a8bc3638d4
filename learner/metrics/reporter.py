"""The reporter: writes the learner's metrics to the run's loggers, and one JSON line a step for
the launcher."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learner.metrics.evaluator import Evaluation
from learner.metrics.logger import Logger
from learner.metrics.tags import check_tag
from learner.run_files import PROGRESS
from r3l.process.notices import notice_again

log = logging.getLogger(__name__)


class Reporter:
    """Writes `run/progress.jsonl`, and what `loggers` write; closes them.

    `start`: the version training goes on from. Steps after it that an earlier learner reported
    are void: the progress file gets a line that says so. `evaluated`: versions whose evaluation is
    reported already.
    """

    def __init__(self, run: Path, start: int = 0, loggers: Sequence[Logger] = ()) -> None:
        self.loggers = loggers
        lines = _read(run / PROGRESS)
        self.evaluated = {line["step"] for line in lines if line["kind"] == "eval"}
        reached = max((line["step"] for line in lines if line["kind"] == "step"), default=start)
        self.progress = (run / PROGRESS).open("a", encoding="utf-8", buffering=1)
        if reached > start:
            self._line("again", start, {"reached": reached})

    def step(
        self,
        version: int,
        metrics: dict[str, float],
        histograms: dict[str, Any],
        corrections: Sequence[str] = (),
    ) -> None:
        """Record one optimizer step. `corrections`: texts of learner.metrics.samples."""
        self.scalars(version, metrics)
        for tag in histograms:
            check_tag(tag)
        for logger in self.loggers:
            if histograms:
                logger.histograms(version, histograms)
            if corrections:
                logger.texts(version, "group/correction", corrections)
        self._line("step", version, metrics)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Record one finished evaluation."""
        version, values = evaluation.version, evaluation.metrics
        self.scalars(version, {f"eval/{name}": value for name, value in values.items()})
        self._line("eval", version, values)

    def scalars(self, version: int, metrics: dict[str, float]) -> None:
        """Record metrics in the loggers alone; every tag must be in learner.metrics.tags."""
        for tag in metrics:
            check_tag(tag)
        for logger in self.loggers:
            logger.scalars(version, metrics)

    def close(self) -> None:
        """Flush everything."""
        for logger in self.loggers:
            logger.close()
        self.progress.close()

    def _line(self, kind: str, version: int, values: dict[str, Any]) -> None:
        line = {"kind": kind, "step": version, "time": time.time(), **values}
        try:
            self.progress.write(json.dumps(line) + "\n")
        except OSError as error:
            log.warning("%s: a line was not written, training goes on (%s)", PROGRESS, error)
            notice_again(PROGRESS, f"{PROGRESS} could not be written ({error})")


def _read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a progress file; a killed writer may have left half a line."""
    if not path.exists():
        return []
    whole, _, half = path.read_bytes().rpartition(b"\n")
    if half:
        with path.open("r+b") as file:
            file.truncate(len(whole) + bool(whole))
    return [json.loads(line) for line in whole.splitlines()]
