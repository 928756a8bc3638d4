"""The protocol of loggers. They write a run's metrics in addition to its progress file."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from r3l.errors import UserError, install
from r3l.run.config import RunConfig
from r3l.settings.section import flat_settings


@dataclass(frozen=True)
class LoggerContext:
    """Describes the run to a logger. `start`: the version at which training starts. `target`: the
    text after `NAME:` in the setting `log`."""

    run: Path
    config: RunConfig
    start: int = 0
    target: str = ""

    @property
    def settings(self) -> dict[str, str | float | bool]:
        """Returns the run's settings, without lists and unset settings, keyed by full name."""
        flat = flat_settings(self.config.model_dump(mode="json"))
        return {key: value for key, value in flat.items() if isinstance(value, str | int | float)}


class Logger:
    """The protocol of all loggers. A new logger is ready to write. Only `scalars` is required.

    Each logger but TensorBoard runs in its own thread (learner.metrics.loggers.registry). If one of
    its methods raises, only that write is lost.
    """

    package: ClassVar[str] = ""
    """The module that the logger imports. The pip extra of the logger's name installs it."""

    @classmethod
    def check(cls, target: str) -> None:
        """Raises UserError if the logger cannot write to `target`, for example without a login."""

    def scalars(self, version: int, metrics: Mapping[str, float]) -> None:
        """Writes a version's metrics, keyed by tag."""
        raise NotImplementedError

    def histograms(self, version: int, histograms: Mapping[str, Any]) -> None:
        """Writes a version's arrays, keyed by tag."""

    def close(self) -> None:
        """Writes all buffered data."""


def check_installed(name: str, package: str) -> None:
    """Raises UserError if the module that a logger needs is not installed."""
    if package and importlib.util.find_spec(package) is None:
        raise UserError(f"log {name}: {package} is not installed; {install(name)}")
