"""The loggers by name. Importing this module loads none of their packages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import Any

from learner.metrics.loggers.background import Background
from learner.metrics.loggers.logger import Logger, LoggerContext, check_installed
from r3l.errors import UserError, did_you_mean

LOGGERS = {
    "tensorboard": "learner.metrics.loggers.tensorboard:TensorBoard",
    "wandb": "learner.metrics.loggers.wandb_logger:WandbLogger",
    "mlflow": "learner.metrics.loggers.mlflow_logger:MLflowLogger",
    "trackio": "learner.metrics.loggers.trackio_logger:TrackioLogger",
    "prometheus": "learner.metrics.loggers.prometheus_logger:PrometheusLogger",
}
SYNCHRONOUS = {"tensorboard"}
"""Loggers that write to the run's own disk and handle its failures."""


def check(entries: Iterable[str]) -> None:
    """Raise UserError for an entry of the setting `log` that is unknown or repeated, and for a
    logger without its package or login."""
    names = [entry.partition(":")[0] for entry in entries]
    for name, entry in zip(names, entries, strict=True):
        if name not in LOGGERS:
            known = ", ".join(LOGGERS)
            raise UserError(
                f"log {name}: unknown{did_you_mean(name, LOGGERS)}; the loggers are {known}"
            )
        if names.count(name) > 1:
            raise UserError(f"log {name}: named twice; name each logger once")
        if name not in SYNCHRONOUS:
            kind = _kind(name)
            check_installed(name, kind.package)
            kind.check(entry.partition(":")[2])


def start(context: LoggerContext) -> list[Logger]:
    """The loggers of a run's setting `log`; those of services run in threads."""
    made: list[Logger] = []
    for entry in context.config.log:
        name, _, target = entry.partition(":")
        make = partial(_kind(name), replace(context, target=target))
        made.append(make() if name in SYNCHRONOUS else Background(name, make))
    return made


def _kind(name: str) -> Any:
    """The class of a logger; its only argument is a LoggerContext."""
    return resolve_name(LOGGERS[name])
