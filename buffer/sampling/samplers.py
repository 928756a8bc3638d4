"""Samplers choose the groups of the next batch.

A sampler gets the rows of the groups that may be drawn now (buffer.storage.stored_rows), in lease
order. It returns exactly `count` of the groups. The same seed, version and candidates give the same
batch, unless the sampler keeps state (buffer.sampling.live_sampler).
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_origin

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError, create_model

from buffer.indexes.drawable_groups import numbers_of
from buffer.storage.stored_rows import GroupRow
from r3l.algorithms.facts import RandomSource
from r3l.errors import UserError
from r3l.run.settings.buffer_sampling import SamplerConfig
from r3l.settings import user_class
from r3l.settings.error_text import one_line
from r3l.settings.section import Section

FLOOR = 0.01  # priority of a group without contrast, so that it can be drawn before it is stale


@dataclass(frozen=True)
class Pick:
    """A picked group.

    `probability`: the chance P that this group is picked first, or 1 if the sampler is not random.
    `weight`: importance weight (n P)^-β over n candidates (prioritised experience replay, arXiv
    1511.05952, section 3.4); 1 if all candidates are picked, since nothing is then chosen.
    """

    row: GroupRow
    probability: float = 1.0
    weight: float = 1.0


class Sampler(ABC):
    """Chooses the groups of a batch. One instance lives as long as the service.

    An annotated class attribute is a setting: `temperature: float = 1.0` is
    `buffer.sampler.own.temperature`. It is set before `__init__` is called. A subclass that
    remembers anything from one pick to the next defines `state` and `restore`.
    """

    def __init__(self, config: SamplerConfig) -> None:
        self.config = config

    @abstractmethod
    def pick(self, candidates: Sequence[GroupRow], count: int, source: RandomSource) -> list[Pick]:
        """Picks `count` different candidates.

        Called for every batch. With `replay_share` or `replay_no_contrast`, called once for the new
        groups, and once for the groups that are trained again, sorted by when they were last
        trained.
        """

    def state(self) -> dict[str, Any]:
        """Returns what the sampler remembers, as plain values. The service stores it with every
        draw."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have nothing to take
        """Restores what `state` returned before the service ended."""


class Fifo(Sampler):
    """Picks the groups that were leased first."""

    def pick(self, candidates: Sequence[GroupRow], count: int, source: RandomSource) -> list[Pick]:
        return [Pick(row) for row in candidates[:count]]


class Uniform(Sampler):
    """Picks every group with the same probability, without replacement."""

    def pick(self, candidates: Sequence[GroupRow], count: int, source: RandomSource) -> list[Pick]:
        return _random(candidates, np.ones(len(candidates)), count, source, beta=0.0)


class Prioritised(Sampler):
    """Picks groups with P ∝ (p · (1 − decay · u)⁺ + FLOOR)^α, without replacement.

    p: the priority that a consumer gave the group, by default its contrast, the largest minus the
    smallest reward; u: number of steps that trained on the group.
    """

    def pick(self, candidates: Sequence[GroupRow], count: int, source: RandomSource) -> list[Pick]:
        given, uses = numbers_of(candidates).T
        kept = np.maximum(0.0, 1.0 - self.config.decay * uses)
        weights = (given * kept + FLOOR) ** self.config.alpha
        return _random(candidates, weights, count, source, self.config.beta)


SAMPLERS: dict[str, type[Sampler]] = {"fifo": Fifo, "uniform": Uniform, "prioritised": Prioritised}


def make(config: SamplerConfig) -> Sampler:
    """Makes the configured sampler, built in or the user's own (`path/to/file.py:Class`). Raises
    UserError if it is unknown, or if its settings do not fit its class."""
    kind = user_class.find("buffer.sampler", config.name, SAMPLERS, Sampler)
    with user_class.errors_named(f"buffer.sampler {config.name}: making it"):
        settings = own_settings(kind, config.own)
        sampler = kind.__new__(kind)
        for name, value in settings.items():
            setattr(sampler, name, value)
        sampler.__init__(config)  # type: ignore[misc]
    return sampler


def own_settings(kind: type[Sampler], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value of each setting that a class declares. Raises UserError."""
    fields: dict[str, Any] = {}
    for base in reversed(kind.__mro__[: kind.__mro__.index(Sampler)]):
        for name, hint in inspect.get_annotations(base, eval_str=True).items():
            if name.startswith("_") or ClassVar in (hint, get_origin(hint)):
                continue
            if name in SamplerConfig.model_fields or hasattr(Sampler, name) or name == "config":
                raise UserError(
                    f"buffer.sampler: {kind.__name__}.{name} has the name of an attribute or "
                    "setting that every sampler has; rename it (self.config holds those settings)"
                )
            fields[name] = (hint, getattr(kind, name, ...))
    section = create_model(kind.__name__, __base__=Section, **fields)
    buffer = create_model("Buffer", sampler=(section, ...))
    root = create_model("Settings", buffer=(buffer, ...))
    try:
        checked: Any = root.model_validate({"buffer": {"sampler": dict(given)}})
    except ValidationError as error:
        raise UserError(one_line(root, error)) from None
    return {name: getattr(checked.buffer.sampler, name) for name in fields}


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
    (Efraimidis and Spirakis 2006). Looks at the rows of the picked ones alone.
    """
    arrival = source().standard_exponential(len(candidates)) / weights
    first = np.argpartition(arrival, count - 1)[:count] if count < len(arrival) else slice(None)
    picked = np.arange(len(arrival))[first][np.argsort(arrival[first], kind="stable")]
    probability = weights[picked] / weights.sum()
    if count >= len(candidates):  # such as the new groups of a batch that also replays some
        beta = 0.0
    importance = (len(candidates) * probability) ** -beta
    return [
        Pick(candidates[i], float(p), float(w))
        for i, p, w in zip(picked, probability, importance, strict=True)
    ]
