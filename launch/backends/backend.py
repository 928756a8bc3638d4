"""Finds the machines of a plan and starts its processes: here, or through ssh with a hostfile."""

from __future__ import annotations

from pathlib import Path

from launch.backends import dry_run
from launch.backends.process_commands import ProcessCommands
from launch.backends.processes import Children
from launch.topology.hostfile import Hosts, read_hosts
from launch.topology.machines import Machine, machines_of, this_machine
from launch.topology.requested import RequestedPlaces
from launch.topology.run_plan import Plan


class Backend:
    """Starts each command as a child of r3l-launch, which watches it.

    A cluster's subclass finds its own machines, and overrides what differs."""

    has_nodes = False
    """Whether it is a cluster, whose nodes a hostfile cannot name."""
    starts_later = False
    """Whether it writes a script that starts the run later, on the nodes of --hardware."""
    moves_actors = False
    """Whether an actor may run on another node than the planned one."""

    def machines(
        self, requested: RequestedPlaces, hostfile: Path | None
    ) -> tuple[Hosts | None, tuple[Machine, ...]]:
        """(the addresses of several machines, the machines). Raises UserError."""
        if hostfile is None:
            return None, (this_machine(),)
        together = (requested.machines or 1) == 1
        hosts = read_hosts(hostfile, requested.ranks, together=together)
        return hosts, machines_of(hosts, requested.device)

    def preview(self, plan: Plan) -> str:
        """The plan as text, for --dry-run."""
        return dry_run.text(plan)

    def reserve(self, plan: Plan) -> Children:
        """Reserve the places of a plan; returns what starts and ends its commands. Raises
        UserError."""
        return Children(plan.run / "logs")

    def commands(self, plan: Plan) -> ProcessCommands:
        """The command lines of the plan."""
        return ProcessCommands(plan)

    def write_script(self, plan: Plan) -> str:
        """Write the script of a run that starts later; returns the command that submits it."""
        return ""
