"""trackio: `log=[trackio]` or `log=[trackio:PROJECT]`; `trackio show` shows it.

It writes to the folder TRACKIO_DIR on this machine, by default to trackio's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from learner.metrics.loggers.logger import Logger, LoggerContext


class TrackioLogger(Logger):
    """One run of a project, named after the run's folder. Resuming continues it."""

    package = "trackio"

    def __init__(self, context: LoggerContext) -> None:
        import trackio

        self._run = trackio.init(
            project=context.target or "r3l",
            name=context.run.name,
            config=dict(context.settings),
            resume="allow",
            embed=False,
        )

    def scalars(self, version: int, metrics: Mapping[str, float]) -> None:
        """Write metrics of a version."""
        self._run.log(dict(metrics), step=version)

    def close(self) -> None:
        """Write what is buffered."""
        self._run.finish()
