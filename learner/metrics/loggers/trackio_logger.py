"""trackio: `log=[trackio]` or `log=[trackio:PROJECT]`. `trackio show` shows the runs.

trackio writes to a folder on this machine: TRACKIO_DIR, or else a folder that it chooses.
"""

from collections.abc import Mapping

from learner.metrics.loggers.logger import Logger, LoggerContext


class TrackioLogger(Logger):
    """Writes one trackio run, named after the run's folder. A resumed run continues it."""

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
        self._run.log(dict(metrics), step=version)

    def close(self) -> None:
        self._run.finish()
