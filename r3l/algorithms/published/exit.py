"""ExIt, Exploratory Iteration (arXiv 2509.04575): partial histories of earlier attempts become new
tasks. It is not expert iteration.

    groups of the task whose rewards differ ─► one, by its variance ─► one of its attempts
        ─► its first k steps, k uniform, are the start of a whole group

Groups that start in this way are stored too, and may be continued in turn.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms.shared.stored_starts import Chosen, StartsInside, StoredGroup

PARTIAL = "partial"
"""The kind of groups that continue a partial history."""


class ExIt(StartsInside):
    """ExIt. The task is leased first, so a partial history competes only with those of its own
    task. Its worth is the variance of the rewards in the group it comes from."""

    name: Literal["exit"] = Field("exit", description="algorithm")

    def choose(self, groups: Sequence[StoredGroup], random: np.random.Generator) -> Chosen | None:
        """Draws a group in proportion to the variance of its rewards, then one of its attempts."""
        worth = np.array([group.variance for group in groups])
        if not worth.any():
            return None
        group = groups[int(random.choice(len(groups), p=worth / worth.sum()))]
        return Chosen(PARTIAL, group.attempts[int(random.integers(len(group.attempts)))])
