"""Connects to a Ray cluster, and lists its nodes as a plan's machines."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

from launch.topology.machines import Machine, gpu_gib
from r3l.errors import UserError, install

REACHED_S = 5.0  # timeout of a connection
HEAD = "node:__internal_head__"
"""A resource that only the head node has."""


def connect() -> Any:
    """Connects to the Ray cluster at RAY_ADDRESS, or to this machine's cluster; returns the module
    ray. Raises UserError unless this is the cluster's head node."""
    try:
        import ray
    except ImportError:
        raise UserError(
            f"--cluster ray: Ray is not installed; on every node: {install('ray')}"
        ) from None
    if not ray.is_initialized():
        _check_reachable(os.environ.get("RAY_ADDRESS", ""))
        try:
            ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # Ray raises many kinds
            why = str(error).strip().partition("\n")[0]
            raise UserError(
                f"--cluster ray: no cluster to connect to ({why:.200}); start its head with "
                "`ray start --head`, or describe its nodes with --dry-run --hardware"
            ) from None
    if ray.get_runtime_context().get_node_id() != _alive(ray)[0]["NodeID"]:
        raise UserError(
            "--cluster ray: this is not the head node, on which rank 0 and the buffer run; start "
            "r3l-launch there (`ray job submit` does)"
        )
    return ray


def _check_reachable(address: str) -> None:
    """Refuses a host:port that does not answer; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), REACHED_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--cluster ray: RAY_ADDRESS={address} cannot be reached ({error}); start its head, or "
            "correct the address"
        ) from None


def ray_machines() -> tuple[Machine, ...]:
    """Returns the machines of the cluster, head first. All GPUs are assumed to have as much memory
    as the head's. Raises UserError."""
    return machines_of_nodes(_alive(connect()), gpu_gib)


def machines_of_nodes(
    nodes: list[dict[str, Any]], gib: Callable[[], float | None]
) -> tuple[Machine, ...]:
    """Converts nodes listed by ray.nodes() to machines. `gib` returns the memory of a GPU."""
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
    """The live nodes, head first."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sorted(nodes, key=lambda node: HEAD not in node["Resources"])
