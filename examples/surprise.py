"""A sampler of your own: it picks what surprised the learner, and picks what nobody knows first.

    r3l-launch buffer.sampler=examples/surprise.py:Surprise buffer.sampler.own.temperature=0.1

A consumer says how surprising a group was: client.update_priorities({group_id: surprise}).
"""

from collections.abc import Sequence

import numpy as np

from buffer.sampling.samplers import Pick, Sampler
from buffer.storage.stored_rows import GroupRow
from r3l.algorithms.facts import RandomSource


class Surprise(Sampler):
    """Picks the groups with the largest priority plus noise of scale `temperature`."""

    temperature: float = 0.1
    unknown: float = 1.0

    def pick(self, candidates: Sequence[GroupRow], count: int, source: RandomSource) -> list[Pick]:
        """Picks `count` candidates."""
        known = [self.unknown if row.priority is None else row.priority for row in candidates]
        noise = self.temperature * source().gumbel(size=len(candidates))
        order = np.argsort(-(np.array(known) + noise), kind="stable")
        return [Pick(candidates[i]) for i in order[:count]]
