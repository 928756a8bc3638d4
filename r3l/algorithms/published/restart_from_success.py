"""Restarts from successes: a curriculum of suffixes (after CRPS, Findings of ACL 2026).

    hard task with a stored success ─► all attempts of a group restart at one of its steps:
        near the end at first; farther from it, once enough of them succeed

Source of the idea: Curriculum Replay via Progressive Suffixes. Its rule for the place of the
restart was not at hand; this one is ours.
"""

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from r3l.algorithms.shared.stored_starts import (
    Chosen,
    FromSuccess,
    StoredGroup,
    newest_of,
    number_of,
    numbered,
    random_success,
)

RESTART = "restart"
"""The kind of groups that restart, with their stage."""


class RestartFromSuccess(FromSuccess):
    """Restarts from successes. Stage s of S restarts before the last s/(S + 1) of the steps."""

    name: Literal["restart_from_success"] = Field("restart_from_success", description="algorithm")
    stages: int = Field(4, ge=1, le=1000, description="S, how many places a curriculum restarts at")
    forward: float = Field(
        0.5,
        gt=0,
        le=1,
        description="share of successful restarts from which on a task's next ones restart one "
        "stage nearer to the beginning",
    )
    back: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of successful restarts up to which a task's next ones restart one stage "
        "nearer to the end",
    )

    @model_validator(mode="after")
    def _stages_have_a_direction(self) -> Self:
        if self.back >= self.forward:
            raise ValueError(
                f"back {self.back:g} must be less than forward {self.forward:g}; lower back"
            )
        return self

    def choose(self, groups: Sequence[StoredGroup], random: np.random.Generator) -> Chosen | None:
        """Draws one of the successes of a hard task, at the task's stage."""
        success = random_success(groups, random) if self.is_hard(groups) else None
        return None if success is None else Chosen(numbered(RESTART, self.stage(groups)), success)

    def stage(self, groups: Sequence[StoredGroup]) -> int:
        """Returns the stage of a task, 1 to S, from its newest restarts."""
        stage, success = newest_of(groups, RESTART)
        if not stage:
            return 1
        moved = stage + (success >= self.forward) - (success <= self.back)
        return min(max(moved, 1), self.stages)

    def start_of(self, kind: str, steps: int, random: np.random.Generator) -> int:
        """Returns the step at which a stage restarts."""
        suffix = -(-steps * number_of(kind, RESTART) // (self.stages + 1))  # rounded up
        return min(max(steps - suffix, 1), steps - 1)
