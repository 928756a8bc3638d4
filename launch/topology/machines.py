"""Parses --learner and --hardware, and describes this machine's GPUs and cores."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from r3l.errors import UserError

GPUS = Path("/proc/driver/nvidia/gpus")
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
HERE = "localhost"
MIB_IN_GIB = 1024
ASKED_S = 20  # timeout of nvidia-smi


@dataclass(frozen=True)
class Machine:
    """One machine.

    `gpus`: names for CUDA_VISIBLE_DEVICES. `gpu_gib`: memory of each GPU, None if unknown. `cores`:
    usable cores, None if unknown.
    """

    name: str
    gpus: tuple[str, ...] = ()
    gpu_gib: float | None = None
    cores: int | None = 1


@dataclass(frozen=True)
class ActorPlace:
    """The place of one actor. `share`: share of each GPU's memory. `threads`: OpenMP threads. If
    `share` or `threads` is None, the actor uses the default."""

    machine: str
    gpus: tuple[str, ...] = ()
    share: float | None = None
    threads: int | None = None


@dataclass(frozen=True)
class RequestedPlaces:
    """The actors, ranks and devices requested by the user.

    `machines`: number of machines; each gets equally many ranks. If it is None, the ranks take the
    first devices. `actor_gpus`: GPUs of one actor (vLLM's tensor_parallel_size).
    """

    actors: int
    ranks: int
    device: str
    machines: int | None = None
    actor_gpus: int = 1

    @property
    def learner(self) -> str:
        """The option --learner, such as 8gpu or 2x8gpu."""
        if self.machines is None:
            return f"{self.ranks}{self.device}"
        return f"{self.machines}x{self.ranks // self.machines}{self.device}"


def parse_learner(text: str) -> tuple[int, str, int | None]:
    """Parses `8gpu`, `2cpu` or `2x8gpu` to (ranks, device, machines). Raises UserError."""
    match = re.fullmatch(r"(?:([1-9]\d{0,4})x)?([1-9]\d{0,4})(cpu|gpu)", text)
    if match is None:
        raise UserError(
            f"--learner {text!r}: must be a count and a device, like 1cpu or 8gpu; for two "
            "machines of 8 GPUs, give 2x8gpu"
        )
    machines = None if match[1] is None else int(match[1])
    return int(match[2]) * (machines or 1), match[3], machines


def visible_gpus() -> list[str]:
    """Returns CUDA's names of this machine's GPUs. Obeys CUDA_VISIBLE_DEVICES."""
    here = [str(i) for i, _ in enumerate(GPUS.glob("*"))]
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None or not here:
        return here
    return [name.strip() for name in allowed.split(",") if name.strip()]


def this_machine() -> Machine:
    """Describes this machine without importing torch."""
    gpus = tuple(visible_gpus())
    return Machine(HERE, gpus, gpu_gib() if gpus else None, usable_cores())


def usable_cores(limit: Path = CPU_LIMIT) -> int:
    """Returns how many cores this process may use, by its affinity and its control group.

    `limit`: file with two words. The first is the CPU time allowed in each period, or "max". The
    second is the length of the period.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = limit.read_text(encoding="utf-8").split()
    except (OSError, ValueError):  # no control group of version 2
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def described(text: str) -> tuple[Machine, ...]:
    """Parses --hardware. `2x8x80GB` means 2 machines, each with 8 GPUs of 80 GiB. `2x8cpu` means 2
    machines of 8 cores. Without `2x`, there is one machine. Raises UserError for other forms."""
    if match := re.fullmatch(r"(?:([1-9]\d{0,3})x)?([1-9]\d{0,3})cpu", text):
        return tuple(Machine(name, cores=int(match[2])) for name in _names(int(match[1] or 1)))
    pattern = r"(?:([1-9]\d{0,3})x)?([1-9]\d{0,2})x(\d{1,4}(?:\.\d+)?)G(?:i?B)?"
    match = re.fullmatch(pattern, text)
    if match is None or not float(match[3]):
        raise UserError(
            f"--hardware {text!r}: must be machines x GPUs x memory (like 2x8x80GB) or a number of "
            "CPU cores (like 8cpu)"
        )
    count, gpus = int(match[1] or 1), tuple(str(gpu) for gpu in range(int(match[2])))
    return tuple(Machine(name, gpus, float(match[3]), None) for name in _names(count))


def _names(count: int) -> list[str]:
    return [HERE] if count == 1 else [f"host-{index}" for index in range(count)]


def gpu_gib() -> float | None:
    """Returns the memory of this machine's smallest GPU, in GiB; None if nvidia-smi cannot tell."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(
            command, capture_output=True, text=True, timeout=ASKED_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return smallest_gib(listing.stdout)


def smallest_gib(listing: str) -> float | None:
    """Converts the smallest size in nvidia-smi's list (MiB) to GiB; None if it lists no size."""
    sizes = [int(line) for line in listing.splitlines() if line.isdecimal()]
    return min(sizes) / MIB_IN_GIB if sizes else None
