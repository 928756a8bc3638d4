"""Prometheus: `log=[prometheus]` or `log=[prometheus:[HOST:]PORT]` serves the newest metrics.

The address is http://HOST:PORT/metrics; by default only this machine can reach it.
`learner/loss` becomes the gauge `r3l_learner_loss` with the label `run`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from learner.metrics.loggers.logger import Logger, LoggerContext
from r3l.errors import UserError

HOST, PORT = "127.0.0.1", 9464


class PrometheusLogger(Logger):
    """Serves metrics for a Prometheus server to scrape."""

    package = "prometheus_client"

    @classmethod
    def check(cls, target: str) -> None:
        """Raise UserError if the address is malformed or already in use."""
        host, port = _address(target)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise UserError(
                    f"log prometheus: cannot serve at {host}:{port} ({error.strerror}); name "
                    "another port, such as prometheus:9465"
                ) from None

    def __init__(self, context: LoggerContext) -> None:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        self._registry, self._gauge = CollectorRegistry(), Gauge
        self._run = context.run.name
        self._gauges: dict[str, Gauge] = {}
        host, port = _address(context.target)
        self._server, self._thread = start_http_server(port, host, self._registry)

    def scalars(self, version: int, metrics: Mapping[str, float]) -> None:
        """Replace the served values."""
        for tag, value in {"version": float(version), **metrics}.items():
            name = "r3l_" + re.sub(r"\W", "_", tag)
            if name not in self._gauges:
                self._gauges[name] = self._gauge(name, tag, ["run"], registry=self._registry)
            self._gauges[name].labels(self._run).set(value)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def _address(target: str) -> tuple[str, int]:
    host, _, port = target.rpartition(":")
    if target and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UserError(
            f"log prometheus:{target}: must be prometheus:PORT or prometheus:HOST:PORT, with a "
            "port from 1 to 65535"
        )
    return host or HOST, int(port or PORT)
