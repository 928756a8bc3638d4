"""POPE (arXiv 2601.18779): privileged on-policy exploration. Attempts at a hard task are guided by
the shortest beginning of a solution that helps.

    hard task with a stored solution ─► its first k steps and a request to build on them, for a
                                        whole group; k grows until such a group has a success

Guidance is part of the guided task: it stays in the rows, so that the policy is trained in the
context in which it was sampled. Half of the groups are unguided; the effect shows in these.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms.batch import Batch
from r3l.algorithms.queries import Query
from r3l.algorithms.rows import Row
from r3l.algorithms.shared.stored_starts import (
    Chosen,
    FromSuccess,
    StoredGroup,
    newest_of,
    number_of,
    numbered,
    random_success,
)

GUIDED = "guided"
"""The kind of guided groups, with the number of steps in their guidance."""


class POPE(FromSuccess):
    """POPE. A task is hard while no unguided attempt succeeds. A solution is a stored success."""

    name: Literal["pope"] = Field("pope", description="algorithm")
    hard: float = Field(
        0.0,
        ge=0,
        le=1,
        description="a task is hard if at most this share of the attempts succeeded in the newest "
        "of its unguided groups",
    )
    guidance_most: float = Field(
        0.25,
        gt=0,
        le=1,
        description="longest guidance, as a share of the solution's steps, and at least one step",
    )
    instruction: str = Field(
        "The steps so far begin a solution that works. Go on from here and complete it.",
        description="what the policy reads after the guidance; empty: nothing",
    )

    def choose(self, groups: Sequence[StoredGroup], random: np.random.Generator) -> Chosen | None:
        """Draws one of the solutions of a hard task. Its guidance is as long as in the task's
        newest guided group, or one step longer if no attempt of that group succeeded."""
        solution = random_success(groups, random) if self.is_hard(groups) else None
        if solution is None:
            return None
        length, success = newest_of(groups, GUIDED)
        return Chosen(numbered(GUIDED, length if success else length + 1), solution)

    def start_of(self, kind: str, steps: int, random: np.random.Generator) -> int:
        """Returns the length of the guidance. Draws it uniformly if no length has helped."""
        most = min(max(int(self.guidance_most * steps), 1), steps - 1)
        length = number_of(kind, GUIDED)
        return length if length <= most else int(random.integers(1, most + 1))

    def advice_of(self, kind: str) -> str:
        return self.instruction

    def rows(self, batch: Batch) -> list[Row]:
        """Makes rows from the attempts as the policy read them, with the guidance."""
        return super().rows(batch.as_read())

    def queries(self, batch: Batch) -> Sequence[Query]:
        return super().queries(batch.as_read())
