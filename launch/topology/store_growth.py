"""Estimates how fast a run's store grows, and when it fills its disk."""

from pathlib import Path

from r3l.run.config import RunConfig
from r3l.run.process.free_space import DISK_FLOOR, free_bytes
from r3l.text import GIB, size_text

BYTES_PER_TOKEN = 18.0
"""Measured on the disk: 12.5 for plain attempts, 18 with retries and their reflections."""


def text(config: RunConfig, run: Path) -> str:
    """Returns a line that says how much a step and the run store at most, and after which step
    there is no room left. Assumes that every attempt fills the context, so most runs store less."""
    groups, slots = config.learner.groups_per_step, config.algorithm.group_size
    steps, tokens = config.learner.steps, config.actor.max_model_len
    step = groups * slots * tokens * BYTES_PER_TOKEN
    line = (
        f"store: up to {size_text(step)} a step ({groups} groups of {slots} attempts of {tokens} "
        f"tokens), {size_text(step * steps)} in {steps} steps"
    )
    if config.buffer.archive:
        return f"{line}; closed groups move to {config.buffer.archive}"
    room, what, remedy = _room(config, run)
    if _kept(config) <= room or step * steps <= room:
        return line
    return f"{line}; {what} full after step {int(room // step)}: {remedy}"


def _kept(config: RunConfig) -> float:
    """Returns the bytes that the store keeps at most; infinite without a limit."""
    gib = config.buffer.retention.gib
    return float("inf") if gib is None else gib * GIB


def _room(config: RunConfig, run: Path) -> tuple[float, str, str]:
    """Returns the bytes that the store may take, what is full then, and what to do."""
    free, limit = max(0, free_bytes(run) - DISK_FLOOR), config.buffer.map_gib
    remedy = "set buffer.retention or buffer.archive"
    if limit is not None and limit * GIB < free:
        return limit * GIB, f"buffer.map_gib={limit:g} is", f"raise it, or {remedy}"
    return free, f"its disk, with {size_text(free)} free, is", f"{remedy}, or choose a larger disk"
