"""Fixes how many threads this process computes with, and describes what it computes on.

The last bits of a sum depend on the order of its terms. The order depends on the processor, on the
libraries' versions and on the number of threads. So a step is the same bit for bit in another
process only if all of these are the same there.
"""

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import torch

LIBRARIES = ("deepspeed", "transformers")
BUILT_IN = {"MKL": r"Math Kernel Library Version (\S+)", "oneDNN": r"(?:MKL-DNN|oneDNN) v(\S+)"}
"""Libraries inside PyTorch, each with a pattern for its version in `torch.__config__.show()`."""
SWITCHES = (
    "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip
"""Environment variables with which a user chooses other instructions."""
CPU_INFO = Path("/proc/cpuinfo")
CPU_FIELDS = ("model name", "cpu family", "model", "stepping")
ADJUSTABLE = {"threads"}
"""Facts that a process can take over from another one."""


def fix_threads(count: int | None = None) -> None:
    """Makes this process always compute with `count` threads, and never with fewer. By default,
    `count` is the present number.

    Without this call MKL may use fewer threads than it is given, such as one for each physical
    core. `torch.set_num_threads` also switches that off. The setting applies to the whole process.
    So r3l's programs call this function, but its library does not.
    """
    torch.set_num_threads(count or torch.get_num_threads())


def facts(device: torch.device, ranks: int = 1) -> dict[str, str]:
    """Returns the facts that decide the last bits of a step's result on `device`, by name. Leaves
    out names without a value."""
    found = {"processor": processor(), "instructions": torch.backends.cpu.get_cpu_capability()}
    if device.type == "cuda":
        found |= {"GPU": torch.cuda.get_device_name(device), "CUDA": str(torch.version.cuda)}
    found |= {"threads": str(torch.get_num_threads()), "ranks": str(ranks)}
    found["torch"], built_in = str(torch.__version__), torch.__config__.show()
    for name, pattern in BUILT_IN.items():
        version = re.search(pattern, built_in)
        found[name] = version[1] if version else ""
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    found |= {name: os.environ.get(name, "") for name in SWITCHES}
    return {name: value for name, value in found.items() if value}


def processor(cpu_info: Path = CPU_INFO) -> str:
    """Returns the kind of this machine's processor. One name may stand for several kinds of
    processors, so the numbers of family, model and stepping are added (Linux on x86)."""
    try:
        text = cpu_info.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    lines = (line.partition(":") for line in text.splitlines())
    values = {name.strip(): value.strip() for name, _, value in lines}
    name, *numbers = (values.get(field, "") for field in CPU_FIELDS)
    known = "/".join(number for number in numbers if number)
    return " ".join(filter(None, (name or platform.machine(), known and f"({known})")))


def differences(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Describes where two machines' facts differ, such as "torch 2.13.0 there, 2.14.0 here"; "" if
    they are equal, or if nothing is known of `there`."""
    names = [name for name in {**there, **here} if name not in ADJUSTABLE] if there else []
    return "; ".join(
        f"{name} {there.get(name, 'none')} there, {here.get(name, 'none')} here"
        for name in names
        if there.get(name) != here.get(name)
    )
