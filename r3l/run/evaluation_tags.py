"""Names the parts of an evaluation, the same for actors, the learner and `r3l-eval`.

A tag names the tasks of an evaluation in the buffer. A seed determines the random numbers of an
attempt: two policies that play the same task sample with the same ones.
"""

import zlib
from dataclasses import dataclass
from typing import Self

KIND = "eval"


@dataclass(frozen=True)
class EvalTag:
    """The tag `eval@40` of the evaluation of version 40, or `eval@40@0` of its further part at
    temperature 0. `temperature`: None for the first part."""

    version: int
    temperature: float | None = None

    def __str__(self) -> str:
        parts = [KIND, str(self.version)]
        if self.temperature is not None:
            parts.append(number_text(self.temperature))
        return "@".join(parts)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Reads a tag. Returns None if it is of another form."""
        kind, *numbers = text.split("@")
        if kind != KIND or not 1 <= len(numbers) <= 2 or not numbers[0].isdecimal():
            return None
        try:
            return cls(int(numbers[0]), *map(float, numbers[1:]))
        except ValueError:
            return None


def number_text(number: float) -> str:
    """Returns the shortest text that reads back as the same number: 0, 0.4."""
    return repr(float(number)).removesuffix(".0")


def attempt_seed(seed: int, task_id: str, attempt: int = 0) -> int:
    """Returns the 32-bit sampling seed of an evaluation's attempt. `seed`: the run's or the
    command's. `attempt`: counts from 0 for each task."""
    return zlib.crc32(f"{seed}/{task_id}/{attempt}".encode())
