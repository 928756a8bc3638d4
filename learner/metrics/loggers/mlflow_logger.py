"""MLflow: `log=[mlflow]` or `log=[mlflow:URI]`. The default URI is $MLFLOW_TRACKING_URI, or else
mlflow.db in the run's folder. Show that file with `mlflow ui --backend-store-uri sqlite:///…`."""

import os
import socket
import time
from collections.abc import Mapping
from urllib.parse import urlparse

from learner.metrics.loggers.logger import Logger, LoggerContext
from r3l.errors import UserError
from r3l.run.files.run_folder import RunFolder

EXPERIMENT = "r3l"
REACH_S = 5.0
PORTS = {"http": 80, "https": 443}


class MLflowLogger(Logger):
    """Writes one MLflow run. Its experiment is MLFLOW_EXPERIMENT_NAME, by default r3l. A resumed
    training run continues its MLflow run."""

    package = "mlflow"

    @classmethod
    def check(cls, target: str) -> None:
        """Raises UserError if the tracking server cannot be reached."""
        uri = urlparse(_uri(target))
        if uri.scheme not in PORTS:
            return
        try:
            address = (uri.hostname or "", uri.port or PORTS[uri.scheme])
            socket.create_connection(address, REACH_S).close()
        except (OSError, ValueError) as error:
            raise UserError(
                f"log mlflow: the server {_uri(target)} cannot be reached ({error}); start it, or "
                "set another server with log=[mlflow:URI] or MLFLOW_TRACKING_URI"
            ) from None

    def __init__(self, context: LoggerContext) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        own = f"sqlite:///{(context.run / 'mlflow.db').resolve()}"
        local = not _uri(context.target)
        self._client = MlflowClient(tracking_uri=_uri(context.target) or own)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        place = (context.run / "mlflow-artifacts").resolve().as_uri() if local else None
        if known := self._client.get_experiment_by_name(name):
            experiment = known.experiment_id
        else:
            experiment = self._client.create_experiment(name, artifact_location=place)
        folder = RunFolder(context.run)
        self._id = folder.service_id("mlflow")
        if self._id:
            self._client.set_terminated(self._id, status="RUNNING")
        else:
            made = self._client.create_run(experiment, run_name=context.run.name)
            self._id = folder.keep_service_id("mlflow", made.info.run_id)
            settings = [Param(k, str(v)) for k, v in context.settings.items()]
            self._client.log_batch(self._id, params=settings)

    def scalars(self, version: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        values = [self._metric(tag, value, now, version) for tag, value in metrics.items()]
        self._client.log_batch(self._id, metrics=values)

    def close(self) -> None:
        """Ends the MLflow run."""
        self._client.set_terminated(self._id)


def _uri(target: str) -> str:
    return target or os.environ.get("MLFLOW_TRACKING_URI", "")
