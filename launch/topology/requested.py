"""Parses the requested actors and ranks, and their devices."""

from __future__ import annotations

import re
from dataclasses import dataclass

from r3l.errors import UserError


@dataclass(frozen=True)
class RequestedPlaces:
    """The parsed options of one plan.

    `machines`: the number of machines over which the ranks are spread evenly; if None, the ranks
    take the first devices. `actor_gpus`: GPUs of one actor (vLLM's tensor_parallel_size).
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
            f"--learner {text!r}: must be a count and a device, like 1cpu or 8gpu, or with the "
            "number of machines in front, like 2x8gpu"
        )
    machines = None if match[1] is None else int(match[1])
    return int(match[2]) * (machines or 1), match[3], machines
