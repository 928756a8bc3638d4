"""The protocol of loggers, which write a run's metrics in addition to its progress file."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.settings.section import flat_settings


@dataclass(frozen=True)
class LoggerContext:
    """What a logger needs: the run's folder and settings, the version at which training starts or
    resumes, and the logger's `target`: the text after `NAME:` in the setting `log`."""

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
    """The protocol of all loggers; it is open once it is made. Only `scalars` is required.

    If a method raises, only that write is lost; the run continues
    (learner.metrics.loggers.background).
    """

    package: ClassVar[str] = ""
    """The module that it imports; the extra of the logger's name installs it."""

    @classmethod
    def check(cls, target: str) -> None:
        """Raise UserError if `target` cannot be written, for example without a login."""

    def scalars(self, version: int, metrics: Mapping[str, float]) -> None:
        """Write metrics of a version by tag."""
        raise NotImplementedError

    def histograms(self, version: int, histograms: Mapping[str, Any]) -> None:
        """Write arrays by tag."""

    def texts(self, version: int, tag: str, texts: Sequence[str]) -> None:
        """Write texts in Markdown."""

    def close(self) -> None:
        """Write what is buffered."""


def check_installed(name: str, package: str) -> None:
    """Raise UserError if the module that a logger needs is not installed."""
    if package and importlib.util.find_spec(package) is None:
        raise UserError(f"log {name}: {package} is not installed; pip install 'r3l[{name}]'")
