"""The run's sampler, which lives as long as the service.

    store ─ saved state ─► restore ─► pick ─ groups of a batch ─► draw
                                       └──── state ─► store, in the draw's transaction

Without `state` a sampler must pick by seed, version and candidates alone. If `pick` changes
attributes of the sampler or of its class, the pick is refused, since a restart would lose their
values.

A user's `pick` and the check of its attributes run in another thread, so that the writer never
waits for longer than LIMIT_S.
"""

import logging
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

from buffer.indexes.drawable_groups import Candidates
from buffer.sampling import samplers
from buffer.sampling.samplers import Pick, Sampler
from buffer.sampling.timed_worker import Ask, TimedWorker
from buffer.storage.stored_rows import GroupRow
from r3l import codec
from r3l.algorithms.facts import RandomSource
from r3l.errors import RecordError, UserError
from r3l.notices import notice
from r3l.records import LARGEST_REWARD
from r3l.run.settings.buffer_sampling import SamplerConfig
from r3l.settings import user_class

STATE_LIMIT = 1 << 20  # bytes of a sampler's state, written at every draw
DEEPEST = 8  # values inside each other that are watched
LIMIT_S = 10.0  # seconds that a user's pick may take, with the look at what it changed
PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
UNWATCHED = (ModuleType, logging.Filterer, logging.LoggerAdapter)
"""Types of values that change by themselves when they are used, such as a logger with its cache of
levels. A restart loses nothing of them. `Filterer` is the base of loggers and of their handlers."""


class LiveSampler:
    """One instance of the configured sampler. Only the writer thread may use it."""

    def __init__(self, config: SamplerConfig) -> None:
        self._config, self._is_new = config, True
        self._sampler = samplers.make(config)
        self._is_own = ".py:" in config.name
        self._worker: TimedWorker | None = None

    @property
    def keeps_state(self) -> bool:
        """Whether the sampler's class says that it keeps state."""
        return type(self._sampler).state is not Sampler.state

    def restore(self, saved: bytes | None) -> None:
        """Brings the sampler to the last saved state, or to its initial state."""
        if not self._is_new:  # a transaction failed, and its picks with it
            self._sampler, self._is_new = samplers.make(self._config), True
        if saved is None:
            return
        found = codec.unpack(saved, 2 * STATE_LIMIT)
        if found["sampler"] != self._config.name or not self.keeps_state:
            notice(
                f"the state of the sampler {found['sampler']} is not used by {self._config.name}, "
                "which picks from here on, and is gone once that has drawn with a state of its own"
            )
            return
        self._is_new = False
        with user_class.errors_named(f"{self._name}: restore"):
            self._sampler.restore(found["state"])

    def saved(self) -> bytes | None:
        """Returns the sampler's state in the form in which it is stored, or None if the sampler
        keeps no state. Raises UserError."""
        if not self.keeps_state:
            return None
        with user_class.errors_named(f"{self._name}: state"):
            state = self._sampler.state()
        try:
            return codec.pack({"sampler": self._config.name, "state": state}, STATE_LIMIT)
        except RecordError as error:
            raise UserError(
                f"{self._name}: state: cannot be stored ({error!s:.120}); return plain values of "
                f"at most {STATE_LIMIT >> 20} MiB"
            ) from None

    def pick(self, candidates: Sequence[GroupRow], count: int, source: RandomSource) -> list[Pick]:
        """Lets the sampler pick. Raises UserError, which names its file and line, if it fails or
        does not return `count` picks of different candidates."""
        self._is_new = False
        if self._is_own:  # it runs in another thread, and may keep them
            candidates = list(candidates)
        with user_class.errors_named(f"{self._name}: pick"):
            found, changed = self._picks(candidates, count, source)
        picks = _checked(f"{self._name}: pick", found, candidates, count)
        if changed:
            raise UserError(
                f"{self._name}: pick changed self.{changed[0]}, which a restart of the service "
                "would lose; define state() and restore(state), or keep nothing between picks"
            )
        return picks

    def _picks(
        self, candidates: Sequence[GroupRow], count: int, source: RandomSource
    ) -> tuple[list[object], list[str]]:
        """Calls `pick`. Returns its picks, and the watched attributes that it changed. Raises
        whatever it raises, and TimeoutError if it takes too long."""
        is_watched = self._is_own and not self.keeps_state

        def pick(_: Ask) -> tuple[list[object], list[str]]:
            before = self._attributes() if is_watched else {}
            found: object = self._sampler.pick(candidates, count, source)
            if isinstance(found, str) or not isinstance(found, Iterable):
                raise TypeError(f"it returned {found!r:.80}, which is not a list of picks")
            picks = list(found)
            now = self._attributes() if is_watched else {}
            return picks, sorted(n for n in before | now if before.get(n) != now.get(n))

        if not self._is_own:
            return pick(lambda function: function())
        worker, self._worker = self._worker or TimedWorker("sampler"), None
        try:
            outcome = worker.run(pick, LIMIT_S)
        except BaseException:
            worker.give_up()
            raise
        self._worker = worker
        if outcome.error is not None:
            raise outcome.error
        return outcome.value or ([], [])

    @property
    def _name(self) -> str:
        return f"buffer.sampler {self._config.name}"

    def _attributes(self) -> dict[str, object]:
        """Returns a value for each attribute of the sampler and of its class; it differs if the
        attribute has changed. Leaves out cached properties and functions."""
        kind, values = type(self._sampler), dict[str, object]()
        for base in reversed(kind.__mro__[: kind.__mro__.index(Sampler)]):
            values |= {name: each for name, each in vars(base).items() if _holds(name, each)}
        values |= _own(self._sampler)
        return {name: _mark(value) for name, value in values.items()}


def _holds(name: str, value: object) -> bool:
    """Whether an attribute of a class can hold what a pick remembers."""
    return not name.startswith(("__", "_abc_")) and not (
        callable(value) or isinstance(value, property | cached_property | classmethod)
    )


def _own(value: object) -> dict[str, object]:
    """Returns the attributes of an object, without its cached properties."""
    kind, held = type(value), getattr(value, "__dict__", {})
    return {
        name: each
        for name, each in held.items()
        if not isinstance(getattr(kind, name, None), cached_property)
    }


def _mark(value: Any, inside: tuple[int, ...] = ()) -> object:
    """Returns a mark of a value. Two marks are equal unless the value has changed between them, as
    far as can be seen. `inside`: ids of the values that hold it."""
    if isinstance(value, bool | int | float | str | bytes | None):
        return repr(value)
    if isinstance(value, UNWATCHED):
        return id(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if id(value) in inside or len(inside) > DEEPEST:
        return id(value)
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        return _marks(list(value), inside), _marks(list(value.values()), inside)
    if isinstance(value, list | tuple | set | frozenset | deque):
        return _marks(list(value), inside)
    return id(value), _mark(_own(value), inside)


def _marks(values: list[Any], inside: tuple[int, ...]) -> object:
    """Returns the mark of a list. Plain values are not written as text, which takes ten times as
    long; their types tell 1, 1.0 and True apart."""
    kinds = list(map(type, values))
    if PLAIN.issuperset(kinds):
        return values, kinds
    return [_mark(each, inside) for each in values]


def _checked(
    what: str, found: Sequence[object], candidates: Sequence[GroupRow], count: int
) -> list[Pick]:
    """Returns `found`. Raises UserError unless it holds `count` picks of different candidates."""
    rule = f"it must return {count} picks, each of a different candidate"
    picks, known = dict[str, Pick](), _names(candidates)
    for pick in found:
        if not isinstance(pick, Pick) or not isinstance(pick.row, GroupRow):
            raise UserError(f"{what} returned {pick!r:.80}, which is not a Pick of a row; {rule}")
        name = pick.row.group_id
        if name in picks:
            raise UserError(f"{what} returned group {name} twice; {rule}")
        if name not in known:
            raise UserError(f"{what} returned group {name}, which is not a candidate; {rule}")
        for field, most in (("probability", 1.0), ("weight", LARGEST_REWARD)):
            if not _is_within(getattr(pick, field), most):
                raise UserError(
                    f"{what} gave group {name} the {field} {getattr(pick, field)!r:.40}; it must "
                    f"be a number from 0 to {most:g}"
                )
        picks[name] = Pick(pick.row, float(pick.probability), float(pick.weight))
    if len(picks) != count:
        raise UserError(f"{what} returned {len(picks)} picks; {rule}")
    return list(picks.values())


def _names(candidates: Sequence[GroupRow]) -> Container[str]:
    """Returns what holds the ids of the candidates."""
    if isinstance(candidates, Candidates):
        return candidates.names
    return {row.group_id for row in candidates}


def _is_within(value: Any, most: float) -> bool:
    """Whether a value is a number from 0 to `most`."""
    try:
        return not isinstance(value, str) and 0 <= float(value) <= most  # NaN is not
    except (TypeError, ValueError):
        return False
