"""The benchmark's file of results, a JSON object a line."""

import json
import os
from configparser import ConfigParser
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

SETUP = Path(__file__).parent.parent.parent / "setup.cfg"
LIBRARIES = ("torch", "transformers", "deepspeed")


@dataclass
class Lines:
    """Appends lines to a file and prints them. `common`: in every line."""

    path: Path
    common: dict[str, Any] = field(default_factory=dict)

    def write(self, values: dict[str, Any]) -> None:
        """Appends one line, on disk when this returns."""
        line = json.dumps({**self.common, **{key: _rounded(v) for key, v in values.items()}})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(line, flush=True)


def versions() -> dict[str, str]:
    """The versions of the libraries; of one that is not the pinned version both."""
    setup = ConfigParser()
    setup.read(SETUP, encoding="utf-8")
    required = setup["options.extras_require"]["gpu"].split()
    pins = dict(line.split("==") for line in required if "==" in line)
    found = {name: metadata.version(name) for name in LIBRARIES}
    return {
        name: version
        if pins.get(name) in (None, version.partition("+")[0])
        else f"{version} (pinned: {pins[name]})"
        for name, version in found.items()
    }


def _rounded(value: Any) -> Any:
    """A value whose floats have five digits."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
