"""r3l: the algorithm of reflect-then-retry reinforcement learning, as records and functions.

`import r3l` also offers the public names of all packages. Each name is imported at its first use:

    r3l.train({"learner.steps": 5})              # what r3l-launch does; returns the run's folder
    r3l.BufferClient(endpoint)                   # a client of a running buffer service
    r3l.Store(folder, read_only=True)            # the group store of a run
"""

from importlib import import_module
from typing import Any

from r3l.files.own_packages import claim

PUBLIC = {
    "AsyncBufferClient": "buffer",
    "BufferClient": "buffer",
    "Store": "buffer.storage.store",
    "EnvSpec": "r3l.rollout.env_interface",
    "Task": "r3l.records",
    "ListedTasks": "envs",
    "SeededTasks": "envs",
    "check_env": "envs.testing",
    "make_env": "envs.registry",
    "RunConfig": "r3l.config",
    "UserError": "r3l.errors",
    "load_config": "r3l.config",
    "train": "launch.cli",
}
"""The public names and their modules."""
RENAMED = {"make_env": "make", "load_config": "load"}

__all__ = list(PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"r3l has no {name!r}; it offers {', '.join(PUBLIC)}")
    if not PUBLIC[name].startswith("r3l."):
        claim()
    value = getattr(import_module(PUBLIC[name]), RENAMED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
