"""The Prometheus endpoint, scraped."""

import socket
import urllib.request
from pathlib import Path

import pytest

from learner.metrics.loggers.logger import LoggerContext
from learner.metrics.loggers.prometheus_logger import PrometheusLogger
from r3l.config import load
from r3l.errors import UserError


def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("target", ["x", "0", "65536", "127.0.0.1:", "host:-1"])
def test_a_target_without_a_port_is_refused(target: str) -> None:
    with pytest.raises(UserError, match="must be prometheus:PORT or prometheus:HOST:PORT"):
        PrometheusLogger.check(target)


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot serve at 127.0.0.1:{port}"):
            PrometheusLogger.check(str(port))
    PrometheusLogger.check(str(port))


def test_the_endpoint_shows_the_newest_values(tmp_path: Path) -> None:
    parser = pytest.importorskip(
        "prometheus_client.parser", reason="prometheus-client is not installed (r3l[prometheus])"
    )
    port = free()
    logger = PrometheusLogger(LoggerContext(tmp_path / "first", load(), target=str(port)))
    for version in (1, 2):
        logger.scalars(version, {"learner/loss": version / 2, "group/failed_a-b": 1.0})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    found = {
        sample.name: (sample.labels, sample.value)
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    run = {"run": "first"}
    assert found == {
        "r3l_version": (run, 2.0),
        "r3l_learner_loss": (run, 1.0),
        "r3l_group_failed_a_b": (run, 1.0),
    }
    logger.close()
    PrometheusLogger.check(str(port))
