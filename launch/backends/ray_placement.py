"""Connects to a Ray cluster, and lists its nodes as a plan's machines.

Splits a plan into bundles and builds the processes' commands. A bundle needs one node.
"""

import os
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from launch.backends import dry_run
from launch.backends.process_commands import ProcessCommands
from launch.backends.processes import Command
from launch.topology.machines import ActorPlace, Machine, gpu_gib
from launch.topology.placement import Plan, Topology
from r3l.errors import UserError, install
from r3l.files.own_packages import claim

REACHED_S = 5.0  # timeout of a connection
HEAD = "node:__internal_head__"
"""A resource that only the head node has."""
OF_HEAD = 0.001  # of HEAD: any amount places a bundle there


def connect() -> Any:
    """Returns the module `ray`, connected to the cluster. Raises UserError if there is no cluster,
    or if this machine is not the head node."""
    try:
        import ray
    except ImportError:
        raise UserError(
            f"--cluster ray: Ray is not installed; on every node, run {install('ray')}"
        ) from None
    if not ray.is_initialized():
        _check_reachable(os.environ.get("RAY_ADDRESS", ""))
        try:
            # Ray puts the user's folder first on its workers' import path.
            ours = {"worker_process_setup_hook": f"{claim.__module__}.{claim.__name__}"}
            ray.init(address="auto", runtime_env=ours, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # Ray raises many kinds
            why = str(error).strip().partition("\n")[0]
            raise UserError(
                f"--cluster ray: no cluster to connect to ({why:.200}); start one with "
                "`ray start --head`; to plan without a cluster, add --dry-run and --hardware"
            ) from None
    if ray.get_runtime_context().get_node_id() != _alive(ray)[0]["NodeID"]:
        raise UserError(
            "--cluster ray: this machine is not the head node; start r3l-launch on the head node, "
            "for example with `ray job submit`"
        )
    return ray


def _check_reachable(address: str) -> None:
    """Refuses a host:port that does not answer. Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), REACHED_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--cluster ray: RAY_ADDRESS={address} cannot be reached ({error}); start the "
            "cluster's head node, or correct the address"
        ) from None


def ray_machines() -> tuple[Machine, ...]:
    """Returns the cluster's machines, head first. Assumes that every GPU has as much memory as the
    head's smallest GPU. Raises UserError if `connect` does."""
    return machines_of_nodes(_alive(connect()), gpu_gib)


def machines_of_nodes(
    nodes: list[dict[str, Any]], gib: Callable[[], float | None]
) -> tuple[Machine, ...]:
    """Converts nodes listed by ray.nodes() to machines. `gib` returns the GiB of one GPU."""
    seen: Counter[str] = Counter()
    machines = []
    memory = gib() if any(node["Resources"].get("GPU") for node in nodes) else None
    for node in nodes:
        address, has = node["NodeManagerAddress"], node["Resources"]
        name = f"{address}-{seen[address]}" if seen[address] else address
        seen[address] += 1
        gpus = tuple(str(gpu) for gpu in range(int(has.get("GPU", 0))))
        machines.append(Machine(name, gpus, memory if gpus else None, int(has.get("CPU", 0)) or 1))
    return tuple(machines)


def _alive(ray: Any) -> list[dict[str, Any]]:
    """Returns the live nodes, head first."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sorted(nodes, key=lambda node: HEAD not in node["Resources"])


@dataclass(frozen=True)
class Bundle:
    """Places processes together on one node, with reserved resources. `gpus`: names in the plan;
    Ray chooses the real GPUs."""

    machine: str
    processes: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    head: bool = False

    @property
    def resources(self) -> dict[str, float]:
        """The amount of each resource, keyed by its name in Ray. A process needs one CPU."""
        gpus = {"GPU": len(self.gpus)} if self.gpus else {}
        return {"CPU": len(self.processes), **gpus} | ({HEAD: OF_HEAD} if self.head else {})

    def shares_gpu(self, place: ActorPlace) -> bool:
        return self.machine == place.machine and bool(set(self.gpus) & set(place.gpus))


def bundles(topology: Topology) -> tuple[Bundle, ...]:
    """Makes one bundle for each machine's ranks. An actor that shares a GPU with a bundle joins the
    bundle. Any other actor gets a new bundle."""
    made: list[Bundle] = []
    begins = 0
    for local in topology.ranks:
        names = tuple(rank_name(rank) for rank in range(begins, begins + local.count))
        made.append(Bundle(local.machine, names, local.gpus, head=not begins))
        begins += local.count
    for index, place in enumerate(topology.actors):
        shared = (at for at, bundle in enumerate(made) if bundle.shares_gpu(place))
        at = next(shared, len(made))
        there = made[at] if at < len(made) else Bundle(place.machine, ())
        gpus = tuple(dict.fromkeys((*there.gpus, *place.gpus)))
        names = (*there.processes, f"actor-{index}")
        made[at : at + 1] = [Bundle(place.machine, names, gpus, there.head)]
    return tuple(made)


def rank_name(rank: int) -> str:
    """Returns the name of a rank's process and log: `learner` for rank 0, or `learner-<rank>`."""
    return f"learner-{rank}" if rank else "learner"


def gpus_of(topology: Topology) -> dict[str, tuple[str, ...]]:
    """Returns the plan's GPU names, keyed by process. A rank sees the GPUs of all ranks on the
    machine, and LOCAL_RANK selects one."""
    each = [local.gpus for local in topology.ranks for _ in range(local.count)]
    actors = {f"actor-{index}": place.gpus for index, place in enumerate(topology.actors)}
    return {rank_name(rank): gpus for rank, gpus in enumerate(each)} | actors


class RayCommands(ProcessCommands):
    """Builds the commands of a plan that runs on Ray, where an actor may run on any node."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.services = plan.topology.machines[0].name

    def learner(self) -> Command:
        """Returns the command of one rank. DeepSpeed's launcher is not used."""
        rank = self.rank()
        if (count := self.plan.topology.count) == 1:
            return rank
        rank0 = {"MASTER_ADDR": self.services, "MASTER_PORT": str(self.free_port())}
        return replace(rank, env=rank.env | {"WORLD_SIZE": str(count)} | rank0)


def text(plan: Plan) -> str:
    lines = ["bundles of a placement group, on nodes that Ray chooses; a learner for each rank:"]
    made, few = bundles(plan.topology), plan.actors <= dry_run.MANY
    counts = Counter(_described(bundle, named=few) for bundle in made)
    for line, count in counts.items():
        lines.append(f"  {line}" + (f" ({count} such bundles)" if count > 1 else ""))
    return dry_run.text(plan, RayCommands(plan), ["\n".join(lines)])


def _described(bundle: Bundle, *, named: bool) -> str:
    """A bundle's resources and processes in a line. `named`: with the names of its actors."""
    needs = [f"{n:g} {name}" for name, n in bundle.resources.items() if name != HEAD]
    head = ["on the head"] if bundle.head else []
    ranks = sum(not name.startswith("actor-") for name in bundle.processes)
    actors = bundle.processes[ranks:]
    what = [f"{ranks} ranks"] if ranks else []
    if actors:
        what += actors if named else [f"{len(actors)} actors" if len(actors) > 1 else "an actor"]
    return f"{', '.join(needs + head)}: {', '.join(what)}"
