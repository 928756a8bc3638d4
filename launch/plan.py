"""Plans a run: the place of each process, and the addresses of the services."""

from launch.backends.registry import backend
from launch.checks.plan_options import PlanOptions
from launch.checks.services import with_reachable_services
from launch.topology.gpu_memory import MemoryEstimate
from launch.topology.machines import described
from launch.topology.placement import Plan, place
from r3l.run.config import RunConfig

ANY_NODE = "other nodes"


def make_plan(config: RunConfig, options: PlanOptions) -> Plan:
    """Plans a run. `config.model` must be a folder. Raises UserError if devices or memory do not
    suffice, or if actors cannot reach a service."""
    starter = backend(options.cluster)
    machines = starter.machines() if options.hardware is None else described(options.hardware)
    requested = options.places(config.actor)
    topology = place(requested, machines, MemoryEstimate.of(config), force=options.force)
    anywhere = (ANY_NODE,) if starter.moves_actors else ()
    reachable = with_reachable_services(options, topology.elsewhere or anywhere)
    return Plan(
        config=config,
        run=options.run,
        topology=topology,
        buffer_bind=reachable.buffer_bind,
        weights_bind=reachable.weights_bind,
        resume=options.resume,
        keys=reachable.keys,
    )
