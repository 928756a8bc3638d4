"""The backends, keyed by their name in --cluster.

Kubernetes needs no backend: it starts r3l's commands itself (examples/kubernetes.yaml).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launch.backends.backend import Backend

LOCAL = "local"
BACKENDS = {
    LOCAL: "launch.backends.backend:Backend",
    "slurm": "launch.backends.slurm:Slurm",
    "ray": "launch.backends.ray_cluster:Ray",
}
"""Module and class of each backend. A module is imported when its backend is used."""


def backend(name: str = LOCAL) -> Backend:
    module, _, kind = BACKENDS[name].partition(":")
    made: Backend = getattr(import_module(module), kind)()
    return made
