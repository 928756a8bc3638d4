"""Checks the free space on a run's disk and in shared memory, before and during the run."""

import shutil
from pathlib import Path

from r3l.errors import UserError

MIB = 1 << 20
DISK_FLOOR = 64 * MIB
"""With less free space than this, the buffer refuses results, so that the run can still finish."""
SHARED_MEMORY, SHARED_FLOOR = Path("/dev/shm"), 16 * MIB


def check_free_space(run: Path, model_bytes: int, copies: int) -> None:
    """Raises UserError if a run's disk or shared memory lacks space. Checkpoints and models need
    `copies` * `model_bytes` of disk."""
    needed, free = 2 * DISK_FLOOR + copies * model_bytes, free_bytes(run)
    if free < needed:
        raise UserError(
            f"run {run}: its disk has {free // MIB} MiB free, but the run needs {needed // MIB} "
            "MiB for its store, checkpoints and models; free some space, choose another disk with "
            "--run, or lower learner.keep_checkpoints"
        )
    if lack := lacking_shared_memory():
        raise UserError(f"{lack}; free some space")


def lacking_space(run: Path) -> str:
    """Returns a warning line if the run's disk or shared memory is nearly full, else ""."""
    if (free := free_bytes(run)) < DISK_FLOOR:
        return f"{free // MIB} MiB are free on the disk of {run}; free some space"
    return lacking_shared_memory()


def lacking_shared_memory() -> str:
    """Returns a warning line if this machine has almost no shared memory left, else ""."""
    if not SHARED_MEMORY.is_dir() or (free := free_bytes(SHARED_MEMORY)) >= SHARED_FLOOR:
        return ""
    return (
        f"{SHARED_MEMORY}: {free // MIB} MiB are free, but engines and learners "
        f"need {SHARED_FLOOR // MIB} MiB (in a container, set docker run --shm-size)"
    )


def free_bytes(path: Path) -> int:
    """Returns the free bytes on the disk of a path. The path need not exist."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free
