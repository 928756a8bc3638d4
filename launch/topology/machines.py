"""The machines of a plan: this one, the hostfile's, or described ones."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.topology.hostfile import Hosts
from r3l.errors import UserError

GPUS = Path("/proc/driver/nvidia/gpus")
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
HERE = "localhost"
MIB_IN_GIB = 1024
ASKED_S = 20  # seconds for nvidia-smi to answer


@dataclass(frozen=True)
class Machine:
    """One machine. `gpus`: their names as CUDA_VISIBLE_DEVICES takes them; `gpu_gib`: memory of
    each, None if unknown; `cores` that processes may use, None if unknown; `slots`: processes it
    is meant for without GPUs, None: any number."""

    name: str
    gpus: tuple[str, ...] = ()
    gpu_gib: float | None = None
    cores: int | None = 1
    slots: int | None = None


def visible_gpus() -> list[str]:
    """The GPUs of this machine as CUDA names them; only those listed in CUDA_VISIBLE_DEVICES, since
    on a shared machine the others belong to other users."""
    here = [str(i) for i, _ in enumerate(GPUS.glob("*"))]
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None or not here:
        return here
    return [name.strip() for name in allowed.split(",") if name.strip()]


def this_machine() -> Machine:
    """This machine, without importing torch."""
    gpus = tuple(visible_gpus())
    return Machine(HERE, gpus, gpu_gib() if gpus else None, usable_cores())


def usable_cores(limit: Path = CPU_LIMIT) -> int:
    """The cores that this process may use: those of its affinity, and at most what the control
    group's file `limit` grants (microseconds in each period of as many, or "max")."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = limit.read_text(encoding="utf-8").split()
    except (OSError, ValueError):  # no control group of version 2
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def machines_of(hosts: Hosts, device: str) -> tuple[Machine, ...]:
    """The machines of a hostfile; their slots are GPUs if the learner's `device` is one, or if this
    machine has any. The memory of their GPUs is taken to be that of this machine's."""
    here = this_machine()
    if device == "cpu" and not here.gpus:
        return tuple(
            Machine(name, cores=here.cores, slots=slots) for name, slots in hosts.slots.items()
        )
    found = [
        Machine(name, tuple(str(gpu) for gpu in range(slots)), here.gpu_gib, here.cores)
        for name, slots in hosts.slots.items()
    ]
    if here.gpus:  # those that CUDA_VISIBLE_DEVICES leaves on the first machine
        own = here.gpus[: len(found[0].gpus)]
        found[0] = Machine(found[0].name, own, here.gpu_gib, here.cores)
    return tuple(found)


def described(text: str) -> tuple[Machine, ...]:
    """The machines of `--hardware`: `2x8x80GB` (machines, GPUs of each, memory of each GPU),
    `8x80GB` for one machine, `8cpu` or `2x8cpu` for machines with 8 cores and without GPUs. Raises
    UserError."""
    if match := re.fullmatch(r"(?:([1-9]\d{0,3})x)?([1-9]\d{0,3})cpu", text):
        return tuple(Machine(name, cores=int(match[2])) for name in _names(int(match[1] or 1)))
    pattern = r"(?:([1-9]\d{0,3})x)?([1-9]\d{0,2})x(\d{1,4}(?:\.\d+)?)G(?:i?B)?"
    match = re.fullmatch(pattern, text)
    if match is None or not float(match[3]):
        raise UserError(
            f"--hardware {text!r}: must be machines x GPUs x memory, like 2x8x80GB, or 8cpu"
        )
    count, gpus = int(match[1] or 1), tuple(str(gpu) for gpu in range(int(match[2])))
    return tuple(Machine(name, gpus, float(match[3]), None) for name in _names(count))


def hosts_of(machines: Sequence[Machine]) -> Hosts | None:
    """Described machines as a hostfile names them; None for one."""
    slots = {machine.name: len(machine.gpus) for machine in machines}
    return Hosts(Path("hosts"), slots, machines[0].name) if len(machines) > 1 else None


def _names(count: int) -> list[str]:
    return [HERE] if count == 1 else [f"host-{index}" for index in range(count)]


def gpu_gib() -> float | None:
    """Memory of this machine's smallest visible GPU in GiB; None if nvidia-smi does not say."""
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=ASKED_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return smallest_gib(said.stdout, visible_gpus())


def smallest_gib(listing: str, gpus: Sequence[str]) -> float | None:
    """Memory of the smallest of `gpus` (indices, or UUIDs or their beginnings) in GiB, by the
    listing `index, uuid, MiB` of nvidia-smi; None if it does not list them."""
    found = []
    for line in listing.splitlines():
        index, uuid, mib = ([part.strip() for part in line.split(",")] + ["", "", ""])[:3]
        named = any(gpu == index or (uuid and uuid.startswith(gpu)) for gpu in gpus)
        if named and mib.isdecimal():
            found.append(int(mib) / MIB_IN_GIB)
    return min(found, default=None)
