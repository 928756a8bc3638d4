"""Holds a run that is being planned: its settings and options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launch.backends.registry import LOCAL
from launch.checks.services import LOOPBACK, Services
from launch.topology.machines import RequestedPlaces, parse_learner
from r3l.config import RunConfig
from r3l.errors import UserError


@dataclass(frozen=True)
class PlanOptions:
    """The options of one run, named like those of r3l-launch.

    `force`: resume even with changed settings, and start even if the memory estimate is too large.
    `dry_run`: skip the slow checks (chat template, the environment's first steps). `hardware`: plan
    for these machines, which are not checked. `cluster`: the name of the backend.
    """

    run: Path
    actors: int = 1
    learner: str = "1cpu"
    buffer_bind: str = LOOPBACK
    weights_bind: str = LOOPBACK
    keys: Path | None = None
    resume: bool = False
    force: bool = False
    dry_run: bool = False
    hardware: str | None = None
    cluster: str = LOCAL

    @property
    def services(self) -> Services:
        """The addresses and keys of the services, as given."""
        return Services(self.buffer_bind, self.weights_bind, self.keys)


@dataclass(frozen=True)
class Draft:
    """A run that is being planned: its settings and its options."""

    config: RunConfig
    options: PlanOptions

    @property
    def requested(self) -> RequestedPlaces:
        """The places that the options request. Raises UserError."""
        gpus = self.config.actor.engine.get("tensor_parallel_size", 1)
        if not isinstance(gpus, int):
            raise UserError(f"actor.engine.tensor_parallel_size={gpus}: must be a number of GPUs")
        return RequestedPlaces(self.options.actors, *parse_learner(self.options.learner), gpus)

    @property
    def in_bfloat16(self) -> bool:
        """Whether the learner computes in bfloat16."""
        chosen = self.config.learner.dtype
        return chosen == "bfloat16" or (chosen == "auto" and self.requested.device == "gpu")

    def settled(self, model: Path) -> RunConfig:
        """The settings that the processes read, with the model's folder."""
        return self.config.model_copy(update={"model": str(model)})
