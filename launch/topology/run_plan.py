"""The plan of a run: its checked settings, and where everything runs and listens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from buffer.wire.access import CONNECTIONS
from launch.topology.hostfile import Hosts
from launch.topology.placement import Topology
from r3l.config import RunConfig


@dataclass(frozen=True)
class Plan:
    """One run: its configuration, folder, processes and endpoints.

    The endpoints are the addresses where the services listen; `keys` is the folder with their keys
    and their clients', None for a run without keys. `connections`: clients of the buffer at the
    same time. `changed`: a line for each setting that a resumed run changes.
    """

    config: RunConfig
    run: Path
    topology: Topology
    buffer_bind: str
    weights_bind: str
    resume: bool
    hosts: Hosts | None = None
    keys: Path | None = None
    connections: int = CONNECTIONS
    changed: tuple[str, ...] = ()

    @property
    def actors(self) -> int:
        """How many actors the run starts."""
        return len(self.topology.actors)
