"""Makes r3l import its own packages, even if the user has folders with the same names.

The console scripts and vLLM's plugin start here: a user may well have a folder `envs` or `buffer`,
but hardly one named r3l.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("buffer", "envs", "actors", "learner", "launch")
ROOT = Path(__file__).parents[2]
"""The folder that holds r3l and PACKAGES."""
SCRIPTS = {
    "r3l_launch": "launch.cli",
    "r3l_actor": "actors.cli",
    "r3l_agent": "actors.agent_cli",
    "r3l_learner": "learner.cli",
    "r3l_buffer": "buffer.cli",
    "r3l_env": "envs.cli",
    "r3l_eval": "launch.eval_cli",
}
"""The modules of the console scripts. Each module's `main` is an attribute of this module."""
ENGINE = "R3L_ENGINE"
"""Environment variable, set in the processes of r3l's engines."""


class _OwnPackages(MetaPathFinder):
    """Finds PACKAGES in ROOT alone."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(ROOT)]) if name in PACKAGES else None


def claim() -> None:
    """Makes this process import PACKAGES from ROOT. Raises ImportError if another module of the
    same name was imported first."""
    for name in PACKAGES:
        if (module := sys.modules.get(name)) is None:
            continue
        folders = [*getattr(module, "__path__", []), str(getattr(module, "__file__", None))]
        if Path(folders[0]).resolve() != (ROOT / name).resolve():
            raise ImportError(
                f"r3l needs its package {name}, but another package of this name is already "
                f"imported from {folders[0]}; rename yours"
            )
    if not any(isinstance(finder, _OwnPackages) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OwnPackages())


def __getattr__(name: str) -> Any:
    """Returns the `main` of a console script."""
    if name not in SCRIPTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    claim()
    return import_module(SCRIPTS[name]).main


def vllm_plugin() -> None:
    """Registers r3l's transport of weights in the processes of r3l's engines. vLLM calls this in
    each of its processes, even in those that other programs started."""
    if ENGINE in os.environ:
        claim()
        import_module("actors.weights.vllm_backend").register()


def module_command(module: str) -> list[str]:
    """Returns the words that run a module in a new Python, with `import_path()` as PYTHONPATH."""
    # -P: Python does not import a module of the user's folder in place of r3l's.
    return [sys.executable, "-P", "-m", module]


def import_path() -> str:
    """Returns a child's PYTHONPATH. ROOT comes first."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
