"""Reads hostfiles: the machines of a run, in DeepSpeed's format.

this-machine slots=8        one line per machine; rank 0 runs on the first, which is this one
node-1       slots=8        a slot is a GPU, or a process if there are no GPUs
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from r3l.errors import UserError
from r3l.files import user_file

REACHED_S = 10  # timeout of ssh


@dataclass(frozen=True)
class Hosts:
    """A hostfile's machines and their slots. `address`: the first machine's."""

    path: Path
    slots: dict[str, int]
    address: str

    @property
    def reached(self) -> str:
        """The first machine's address for other machines: `address`, or its name if that is
        loopback."""
        return next(iter(self.slots)) if self.address.startswith("127.") else self.address


def read_hosts(path: Path, ranks: int, *, together: bool = True) -> Hosts:
    """Reads and checks a hostfile. `together`: all ranks may run on the first machine. Raises
    UserError."""
    slots = _parse(path)
    first = next(iter(slots))
    if (total := sum(slots.values())) < ranks:
        raise UserError(
            f"--hostfile {path}: has {total} slots for {ranks} ranks; give --learner {total}gpu or "
            "change the slots"
        )
    address = _address(path, first)
    if not _is_here(first, address):
        raise UserError(
            f"--hostfile {path}: the first machine is {first}, this one is {socket.gethostname()}; "
            "rank 0 talks to the buffer, so start r3l-launch on the first machine"
        )
    if len(slots) > 1:
        spread = not together or ranks > slots[first]  # DeepSpeed starts ranks through pdsh
        for program in ("pdsh", "ssh") if spread else ("ssh",):
            if shutil.which(program) is None:
                raise UserError(
                    f"--hostfile {path}: processes on other machines are started through "
                    f"{program}, which is not installed on this one"
                )
        for host in slots:
            _check_reachable(path, host)
    return Hosts(path.resolve(), slots, address)


def _parse(path: Path) -> dict[str, int]:
    text = user_file.read_text(path, f"--hostfile {path}", "check that it is a hostfile")
    lines = text.splitlines()
    slots: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        match = re.fullmatch(r"(\S+)\s+slots=([1-9]\d*)", text)
        if text and match is None:
            raise UserError(
                f"--hostfile {path}, line {number}: must look like `machine slots=8`, not {text!r}"
            )
        if match is not None:
            if match[1] in slots:
                raise UserError(
                    f"--hostfile {path}, line {number}: {match[1]} appears twice; write one line "
                    "per machine"
                )
            slots[match[1]] = int(match[2])
    if not slots:
        raise UserError(f"--hostfile {path}: names no machines; write lines like `machine slots=8`")
    return slots


def _address(path: Path, host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise UserError(
            f"--hostfile {path}: host {host} cannot be resolved ({error.strerror}); check the name"
        ) from None


def _check_reachable(path: Path, host: str) -> None:
    """Refuses a machine that ssh cannot reach without a password."""
    command = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={REACHED_S}", host, "true"]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=2 * REACHED_S)
        output = probe.stderr.strip().splitlines()
    except subprocess.TimeoutExpired:
        probe, output = None, [f"no reply in {2 * REACHED_S} s"]
    if probe is None or probe.returncode:
        why = output[-1] if output else "no message"
        raise UserError(
            f"--hostfile {path}: {host} cannot be reached ({why[:200]}); `ssh {host} true` must "
            "work from here without a password, for this machine's own name too"
        )


def _is_here(host: str, address: str) -> bool:
    here = {a.address for each in psutil.net_if_addrs().values() for a in each}
    return address in here or address.startswith("127.") or host == socket.gethostname()
