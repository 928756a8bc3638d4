"""Samplers choose the groups of the next batch.

A sampler gets the rows of the groups that may be drawn now (buffer.storage.stored_rows), in lease
order. It returns exactly `count` of the groups. The same seed, version and candidates give the same
batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from buffer.storage.stored_rows import GroupRow
from r3l.algorithms.facts import RandomSource
from r3l.run.settings.sampling import SamplerConfig
from r3l.settings import user_class

FLOOR = 0.01  # priority of a group without contrast, so that it can be drawn before it is stale


@dataclass(frozen=True)
class Pick:
    """A picked group.

    `probability`: the chance P that this group is picked first, or 1 if the sampler is not random.
    `weight`: importance weight (n P)^-β over n candidates (prioritised experience replay, arXiv
    1511.05952, section 3.4).
    """

    row: GroupRow
    probability: float = 1.0
    weight: float = 1.0


class Sampler(ABC):
    """Chooses the groups of a batch."""

    def __init__(self, config: SamplerConfig) -> None:
        self.config = config

    @abstractmethod
    def pick(self, candidates: Sequence[GroupRow], count: int, source: RandomSource) -> list[Pick]:
        """Picks `count` different candidates."""


class Fifo(Sampler):
    """Picks the groups that were leased first."""

    def pick(self, candidates: Sequence[GroupRow], count: int, source: RandomSource) -> list[Pick]:
        return [Pick(row) for row in candidates[:count]]


class Uniform(Sampler):
    """Picks every group with the same probability, without replacement."""

    def pick(self, candidates: Sequence[GroupRow], count: int, source: RandomSource) -> list[Pick]:
        return _random(candidates, np.ones(len(candidates)), count, source, beta=0.0)


class Prioritised(Sampler):
    """Picks groups with P ∝ (contrast · (1 − decay · u)⁺ + FLOOR)^α, without replacement.

    contrast: largest minus smallest reward; u: number of steps that trained on the group.
    """

    def pick(self, candidates: Sequence[GroupRow], count: int, source: RandomSource) -> list[Pick]:
        contrast = np.array([row.contrast for row in candidates])
        uses = np.array([len(row.steps) for row in candidates])
        kept = np.maximum(0.0, 1.0 - self.config.decay * uses)
        weights = (contrast * kept + FLOOR) ** self.config.alpha
        return _random(candidates, weights, count, source, self.config.beta)


SAMPLERS: dict[str, type[Sampler]] = {"fifo": Fifo, "uniform": Uniform, "prioritised": Prioritised}


def make(config: SamplerConfig) -> Sampler:
    """Makes the configured sampler, built in or the user's own (`path/to/file.py:Class`). Raises
    UserError if it is unknown."""
    return user_class.find("buffer.sampler", config.name, SAMPLERS, Sampler)(config)


def pick(
    config: SamplerConfig, candidates: Sequence[GroupRow], count: int, source: RandomSource
) -> list[Pick]:
    """Lets the configured sampler pick. Raises UserError if the sampler fails or does not return
    `count` picks of different groups."""
    with user_class.errors_named(f"buffer.sampler {config.name}: pick"):
        picks = make(config).pick(candidates, count, source)
        if len({pick.row.group_id for pick in picks}) != count or count != len(picks):
            raise ValueError(f"the sampler must return {count} picks, each of a different group")
        return picks


def random_source(seed: int, *place: int) -> RandomSource:
    """Returns the random source of a `place` in the run. A place always gives the same numbers."""
    return lambda: np.random.default_rng([seed, *place])


def _random(
    candidates: Sequence[GroupRow],
    weights: npt.NDArray[np.float64],
    count: int,
    source: RandomSource,
    beta: float,
) -> list[Pick]:
    """Picks `count` candidates one by one, with probabilities proportional to their weights w_i.

    Draws an exponential time with rate w_i for each candidate and picks the smallest times
    (Efraimidis and Spirakis 2006).
    """
    arrival = source().standard_exponential(len(candidates)) / weights
    picked = np.argsort(arrival, kind="stable")[:count]
    probability = weights / weights.sum()
    importance = (len(candidates) * probability) ** -beta
    return [Pick(candidates[i], float(probability[i]), float(importance[i])) for i in picked]
