"""The plan of a run: its checked settings, places and addresses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launch.topology.hostfile import Hosts
from launch.topology.placement import Topology
from r3l.config import RunConfig


@dataclass(frozen=True)
class Plan:
    """The plan of one run.

    `buffer_bind`, `weights_bind`: addresses of the services. `keys`: folder of the services' and
    clients' keys, None if keys are not used. `changed`: one line for each setting that a resumed run changes.
    """

    config: RunConfig
    run: Path
    topology: Topology
    buffer_bind: str
    weights_bind: str
    resume: bool
    hosts: Hosts | None = None
    keys: Path | None = None
    changed: tuple[str, ...] = ()

    @property
    def actors(self) -> int:
        """The number of actors."""
        return len(self.topology.actors)
