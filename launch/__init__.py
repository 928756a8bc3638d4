"""r3l-launch: plans a run, starts its processes, watches them, ends them."""

from importlib.util import find_spec
from pathlib import Path

_HERE = Path(__file__).resolve().parent.parent

for _package in ("r3l", "buffer", "envs", "actors", "learner"):
    _spec = find_spec(_package)
    _found = Path(_spec.origin).resolve().parent if _spec and _spec.origin else None
    if _found != _HERE / _package:
        # A user's folder of that name would otherwise be imported silently.
        hides = f"{_found or 'a folder'} hides {_HERE / _package}"
        raise ImportError(f"package {_package!r}: {hides}; rename your own {_package!r}")
