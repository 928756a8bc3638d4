"""Finds loggers by name. Importing this module does not import their packages."""

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
}
SYNCHRONOUS = {"tensorboard"}
"""Loggers that write to the run's own disk and handle disk failures themselves."""


def check(entries: Iterable[str]) -> None:
    """Check the entries of the setting `log`. Raises UserError if a logger is unknown or repeated,
    or if its package or login is missing."""
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
    """Start the loggers in a run's setting `log`. Loggers that write to services run in threads."""
    made: list[Logger] = []
    for entry in context.config.log:
        name, _, target = entry.partition(":")
        make = partial(_kind(name), replace(context, target=target))
        made.append(make() if name in SYNCHRONOUS else Background(name, make))
    return made


def _kind(name: str) -> Any:
    """Return a logger's class, which takes a LoggerContext."""
    return resolve_name(LOGGERS[name])
