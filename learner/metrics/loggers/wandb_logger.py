"""Weights & Biases: `log=[wandb]` or `log=[wandb:PROJECT]`.

wandb's own variables apply, such as WANDB_MODE=offline, WANDB_ENTITY and WANDB_BASE_URL.
"""

import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from uuid import uuid4

from learner.metrics.loggers.logger import Logger, LoggerContext
from r3l.errors import UserError
from r3l.run.files.run_folder import RunFolder

UNSENT = ("offline", "disabled", "dryrun")


class WandbLogger(Logger):
    """Writes one W&B run, named after the run's folder. A resumed learner continues the W&B run."""

    package = "wandb"

    @classmethod
    def check(cls, target: str) -> None:
        """Raises UserError if wandb is online and has no login."""
        if os.environ.get("WANDB_MODE") in UNSENT or os.environ.get("WANDB_API_KEY"):
            return
        server = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
        if not _has_login(server):
            raise UserError(
                f"log wandb: no login for {server}; run `wandb login`, or set "
                "WANDB_API_KEY, or WANDB_MODE=offline"
            )

    def __init__(self, context: LoggerContext) -> None:
        import wandb

        self._histogram, folder = wandb.Histogram, RunFolder(context.run)
        known = folder.service_id("wandb")
        self._run = wandb.init(
            project=context.target or os.environ.get("WANDB_PROJECT", "r3l"),
            name=context.run.name,
            id=known or folder.keep_service_id("wandb", uuid4().hex[:12]),
            resume="allow",
            dir=str(context.run),
            config=context.config.model_dump(mode="json"),
            settings=wandb.Settings(console="off", silent=True),
        )
        # A killed learner repeats the steps after its checkpoint; wandb's own step cannot decrease.
        self._run.define_metric("version")
        self._run.define_metric("*", step_metric="version")

    def scalars(self, version: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"version": version, **metrics})

    def histograms(self, version: int, histograms: Mapping[str, Any]) -> None:
        shown = {tag: self._histogram(values) for tag, values in histograms.items()}
        self._run.log({"version": version, **shown})

    def close(self) -> None:
        """Sends or writes all buffered data."""
        self._run.finish()


def _has_login(server: str) -> bool:
    file = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    try:
        return server in netrc.netrc(str(file)).hosts
    except (OSError, netrc.NetrcParseError):
        return False
