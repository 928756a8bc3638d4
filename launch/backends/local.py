"""The backend of this machine, and of those in a hostfile, which are reached through ssh."""

from __future__ import annotations

from pathlib import Path

from launch.backends.backend import Backend
from launch.topology.hostfile import Hosts, read_hosts
from launch.topology.machines import Machine, machines_of, this_machine
from launch.topology.requested import RequestedPlaces


class Local(Backend):
    """Starts processes here, and those of a hostfile's other machines through ssh."""

    def machines(
        self, requested: RequestedPlaces, hostfile: Path | None
    ) -> tuple[Hosts | None, tuple[Machine, ...]]:
        """This machine, or those of the hostfile."""
        if hostfile is None:
            return None, (this_machine(),)
        together = (requested.machines or 1) == 1
        hosts = read_hosts(hostfile, requested.ranks, together=together)
        return hosts, machines_of(hosts, requested.device)
