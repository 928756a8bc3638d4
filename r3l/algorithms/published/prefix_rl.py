"""PrefixRL (arXiv 2601.18795): on-policy training on what follows a prefix of a stored success.

    hard task with a stored success ─► its first k steps, k uniform, are the start of a whole group

The prefix makes the task easier. It is read and never trained on, so it may be of any age and from
any policy. Half of the groups play without a prefix.
"""

import math
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from r3l.algorithms.shared.stored_starts import Chosen, FromSuccess, StoredGroup, random_success

PREFIX = "prefix"
"""The kind of groups that start after a prefix."""


class PrefixRL(FromSuccess):
    """PrefixRL. Its prefixes are whole steps. The defaults of lengths and shares are ours."""

    name: Literal["prefix_rl"] = Field("prefix_rl", description="algorithm")
    prefix_least: float = Field(
        0.0, ge=0, le=1, description="shortest prefix, as a share of the success's steps"
    )
    prefix_most: float = Field(
        1.0,
        ge=0,
        le=1,
        description="longest prefix, as a share of the success's steps; the last step is never in "
        "a prefix",
    )

    @model_validator(mode="after")
    def _lengths_are_in_order(self) -> Self:
        if self.prefix_least > self.prefix_most:
            raise ValueError(
                f"prefix_least {self.prefix_least:g} is more than prefix_most "
                f"{self.prefix_most:g}; lower it"
            )
        return self

    def choose(self, groups: Sequence[StoredGroup], random: np.random.Generator) -> Chosen | None:
        """Draws one of the successes of a hard task."""
        success = random_success(groups, random) if self.is_hard(groups) else None
        return None if success is None else Chosen(PREFIX, success)

    def start_of(self, kind: str, steps: int, random: np.random.Generator) -> int:
        """Draws the length of the prefix uniformly between its limits."""
        least = min(max(math.ceil(self.prefix_least * steps), 1), steps - 1)
        most = min(max(math.floor(self.prefix_most * steps), least), steps - 1)
        return int(random.integers(least, most + 1))
