"""R³L with two retries of each failure: one from the pivot, one from half of it.

r3l-launch algorithm=examples/two_pivots.py:TwoPivots
"""

from typing import Literal

from pydantic import Field

from r3l import R3L


class TwoPivots(R3L):
    """A third of a group are attempts. The other slots are for their retries."""

    group_size: int = Field(12, multiple_of=6, description="a third are attempts")
    reflect_on: Literal["all", "failures"] = Field("failures", description="what is retried")

    @property
    def base_attempts(self):
        return self.group_size // 3

    def retries(self, slots):
        attempts = slots // 3
        return {i: [attempts + 2 * i, attempts + 2 * i + 1] for i in range(attempts)}

    def pivots_of(self, thought, base, count):
        pivot = self.pivot_of(thought, base)
        return [pivot, pivot // 2]
