"""MLflow with a file of its own."""

import socket
from pathlib import Path

import pytest

from learner.metrics.loggers.logger import LoggerContext
from learner.metrics.loggers.mlflow_logger import MLflowLogger
from r3l.errors import UserError
from r3l.run.config import load


@pytest.fixture(autouse=True)
def _no_server_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


def test_a_server_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        uri = f"http://127.0.0.1:{there.getsockname()[1]}"
        MLflowLogger.check(uri)
    with pytest.raises(UserError, match=f"log mlflow: .*{uri} cannot"):
        MLflowLogger.check(uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError, match="cannot be reached"):
        MLflowLogger.check("")
    MLflowLogger.check("sqlite:////tmp/some.db")


def test_the_runs_own_file_holds_metrics_and_settings_over_two_lives(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed (r3l[mlflow])")
    config = load(None, ["learner.lr=0.25"])
    for start, version in ((0, 1), (1, 2)):
        logger = MLflowLogger(LoggerContext(tmp_path, config, start))
        logger.scalars(version, {"learner/loss": version / 2, "group/reward_mean": 0.5})
        logger.close()
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("r3l")
    (run,) = client.search_runs([experiment.experiment_id])
    losses = client.get_metric_history(run.info.run_id, "learner/loss")
    assert [(one.step, one.value) for one in losses] == [(1, 0.5), (2, 1.0)]
    assert run.data.params["learner.lr"] == "0.25" and run.info.status == "FINISHED"
    assert run.info.run_name == tmp_path.name
