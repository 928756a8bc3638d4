"""Writes the learner's metrics to the run's loggers, and a JSON line per step for the launcher."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learner.metrics.loggers.logger import Logger
from learner.metrics.tags import check_tag
from r3l.notices import notice_again
from r3l.run.files.progress_lines import AgainLine, EvalLine, ProgressLine, StepLine
from r3l.run.files.run_folder import RunFolder


class Reporter:
    """Writes `run/progress.jsonl`, and passes metrics to `loggers`. `close` closes the loggers.

    `start`: the version at which training starts. If an earlier learner got further, a line says
    that the steps after `start` are void. `evaluated`: versions whose evaluation is reported.
    `own`: the user's algorithm, if any, which may have metrics that learner.metrics.tags does not
    list.
    """

    def __init__(
        self, run: Path, start: int = 0, loggers: Sequence[Logger] = (), *, own: str = ""
    ) -> None:
        self.loggers, self.own = loggers, own
        self.folder = RunFolder(run)
        history = self.folder.history()
        self.evaluated = {line.step for line in history.evaluations}
        if history.reached > start:
            self._line(AgainLine(start, history.reached))

    def step(
        self,
        version: int,
        metrics: dict[str, float],
        histograms: dict[str, Any],
        unread: str = "",
    ) -> None:
        self.scalars(version, metrics)
        for tag in histograms:
            check_tag(tag)
        for logger in self.loggers if histograms else ():
            logger.histograms(version, histograms)
        self._line(StepLine(version, metrics, unread=unread))

    def evaluation(self, line: EvalLine) -> None:
        self.scalars(line.step, {f"eval/{name}": n for name, n in line.metrics.items()})
        self._line(line)

    def scalars(self, version: int, metrics: dict[str, float]) -> None:
        """Records metrics in the loggers only. Every tag must be listed in learner.metrics.tags,
        except for metrics of the user's algorithm."""
        for tag in metrics:
            if not self.own or not tag.startswith(("learner/", "group/")):
                check_tag(tag)
        for logger in self.loggers:
            logger.scalars(version, metrics)

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()

    def _line(self, line: ProgressLine) -> None:
        try:
            self.folder.add_progress(line)
        except OSError as error:
            name = self.folder.progress.name
            notice_again(name, f"{name} could not be written ({error}); training continues")
