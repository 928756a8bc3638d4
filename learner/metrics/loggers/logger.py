"""Loggers: what a run's metrics are written to, besides its progress file."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.settings.flat import flat_settings


@dataclass(frozen=True)
class LoggerContext:
    """What a logger is started for: the run's folder and settings, the version that training goes
    on from, and the logger's `target`, the text after its name and a colon in the setting `log`."""

    run: Path
    config: RunConfig
    start: int = 0
    target: str = ""

    @property
    def settings(self) -> dict[str, str | float | bool]:
        """The run's settings by their full names, without lists and unset ones."""
        flat = flat_settings(self.config.model_dump(mode="json"))
        return {key: value for key, value in flat.items() if isinstance(value, str | int | float)}


class Logger:
    """The protocol of all loggers; a made one is open.

    `scalars` is all that a logger must write. An exception of any method costs what would have
    been written (learner.metrics.loggers.background), never the run.
    """

    package: ClassVar[str] = ""
    """The module that it needs; installed by the extra of the logger's name."""

    @classmethod
    def check(cls, target: str) -> None:
        """Raise UserError if nothing could be logged to `target`, such as without a login."""

    def scalars(self, version: int, metrics: Mapping[str, float]) -> None:
        """Write metrics of a version by tag."""
        raise NotImplementedError

    def histograms(self, version: int, histograms: Mapping[str, Any]) -> None:
        """Write arrays by tag."""

    def texts(self, version: int, tag: str, texts: Sequence[str]) -> None:
        """Write texts in Markdown."""

    def close(self) -> None:
        """Write what is left."""


def check_installed(name: str, package: str) -> None:
    """Raise UserError if the module that a logger needs is not installed."""
    if package and importlib.util.find_spec(package) is None:
        raise UserError(f"log {name}: {package} is not installed; pip install 'r3l[{name}]'")
