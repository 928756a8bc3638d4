"""Finds a plan's machines and starts its processes on them."""

from launch.backends import dry_run
from launch.backends.process_commands import ProcessCommands
from launch.backends.processes import Children
from launch.topology.machines import Machine, this_machine
from launch.topology.placement import Plan


class Backend:
    """Starts each command as a child of r3l-launch, which watches it.

    A subclass for a cluster finds the cluster's machines and overrides the methods that differ."""

    has_nodes = False
    """Whether the backend is a cluster of several machines."""
    starts_later = False
    """Whether the backend writes a script that starts the run later, on the nodes of --hardware."""
    moves_actors = False
    """Whether an actor may run on a node other than the planned node."""

    def machines(self) -> tuple[Machine, ...]:
        """Returns the machines, with this machine first. Raises UserError if they are not known."""
        return (this_machine(),)

    def preview(self, plan: Plan) -> str:
        """Returns the plan as text, for --dry-run."""
        return dry_run.text(plan)

    def reserve(self, plan: Plan) -> Children:
        """Reserves a plan's places. Returns the object that starts and ends the plan's processes.
        Raises UserError if there is no room."""
        return Children(plan.run / "logs", plan.config.learner.hang_s)

    def commands(self, plan: Plan) -> ProcessCommands:
        return ProcessCommands(plan)

    def write_script(self, plan: Plan) -> str:
        """Writes a script that starts the run later. Returns the command that submits it."""
        return ""
