"""r3l: the algorithm of reflect-then-retry reinforcement learning, as records and functions.

`import r3l` also offers the public names of all packages. Each name is imported at its first use:

    r3l.train({"learner.steps": 5})              # what r3l-launch does; returns the run's folder
    r3l.BufferClient(endpoint)                   # a client of a running buffer service
    r3l.Store(folder, read_only=True)            # the group store of a run
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

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
    "RunConfig": "r3l.run.config",
    "LocalPolicy": "r3l.training.local_policy",
    "Trainer": "r3l.training.trainer",
    "UserError": "r3l.errors",
    "load_config": "r3l.run.config",
    "train": "launch.cli",
}
"""The public names and their modules."""
RENAMED = {"make_env": "make", "load_config": "load"}
PACKAGES = ("buffer", "envs", "actors", "learner", "launch")
_ROOT = Path(__file__).parents[1]

__all__ = list(PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"r3l has no {name!r}; it offers {', '.join(PUBLIC)}")
    if not PUBLIC[name].startswith("r3l."):
        _import_packages()
    value = getattr(import_module(PUBLIC[name]), RENAMED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})


def _import_packages() -> None:
    """Imports r3l's packages, even if the user's folder has modules of the same names. Raises
    ImportError if another module of the same name was imported first."""
    sys.path.insert(0, str(_ROOT))
    try:
        for package in PACKAGES:
            folder = Path(str(import_module(package).__file__)).resolve().parent
            if folder != _ROOT.resolve() / package:
                raise ImportError(
                    f"r3l needs its package {package}, but another package of this name is already "
                    f"imported from {folder}; rename yours"
                )
    finally:
        sys.path.remove(str(_ROOT))
