"""The run's sampler, which lives as long as the service.

    store ─ saved state ─► restore ─► pick ─ groups of a batch ─► draw
                                       └──── state ─► store, in the draw's transaction

Without `state` a sampler must pick by seed, version and candidates alone. If its attributes change
in `pick`, a restart would lose what they hold, so the pick is refused.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from buffer.sampling import samplers
from buffer.sampling.samplers import Pick, Sampler
from buffer.storage.stored_rows import GroupRow
from r3l import codec
from r3l.algorithms.facts import RandomSource
from r3l.errors import RecordError, UserError
from r3l.run.settings.sampling import SamplerConfig
from r3l.settings import user_class

STATE_LIMIT = 1 << 20  # bytes of a sampler's state, written at every draw
DEEPEST = 8  # values inside each other that are watched
log = logging.getLogger(__name__)


class LiveSampler:
    """One instance of the configured sampler. Only the writer thread may use it."""

    def __init__(self, config: SamplerConfig) -> None:
        self._config, self._is_new = config, True
        self._sampler = samplers.make(config)
        self._is_own = ".py:" in config.name

    @property
    def keeps_state(self) -> bool:
        """Whether the sampler's class says that it keeps state."""
        return type(self._sampler).state is not Sampler.state

    def restore(self, saved: bytes | None) -> None:
        """Brings the sampler to the state that was saved last, or to its first one."""
        if not self._is_new:  # a transaction failed, and its picks with it
            self._sampler, self._is_new = samplers.make(self._config), True
        if saved is None:
            return
        found = codec.unpack(saved, 2 * STATE_LIMIT)
        if found["sampler"] != self._config.name or not self.keeps_state:
            log.warning(
                "the state of the sampler %s is not used by %s, which picks now",
                found["sampler"], self._config.name,
            )  # fmt: skip
            return
        self._is_new = False
        with user_class.errors_named(f"{self._name}: restore"):
            self._sampler.restore(found["state"])

    def saved(self) -> bytes | None:
        """Returns the sampler's state as it is stored, or None if it keeps none. Raises
        UserError."""
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
        watched = self._is_own and not self.keeps_state
        before = self._attributes() if watched else {}
        self._is_new = False
        with user_class.errors_named(f"{self._name}: pick"):
            picks = list(self._sampler.pick(candidates, count, source))
        _check(f"{self._name}: pick", picks, candidates, count)
        if watched and (now := self._attributes()) != before:
            changed = sorted(n for n in before | now if before.get(n) != now.get(n))
            raise UserError(
                f"{self._name}: pick changed self.{changed[0]}, which a restart of the service "
                "would lose; define state() and restore(state), or keep nothing between picks"
            )
        return picks

    @property
    def _name(self) -> str:
        return f"buffer.sampler {self._config.name}"

    def _attributes(self) -> dict[str, object]:
        """Returns a value for each attribute; it differs if the attribute has changed. Leaves out
        cached properties."""
        kind, found = type(self._sampler), dict[str, object]()
        for name, value in vars(self._sampler).items():
            if not isinstance(getattr(kind, name, None), cached_property):
                found[name] = _mark(value)
        return found


def _mark(value: Any, inside: tuple[int, ...] = ()) -> object:
    """Returns something that is equal as long as the value does not change, as far as can be
    seen. `inside`: ids of the values that hold it."""
    if isinstance(value, bool | int | float | str | bytes | None):
        return repr(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if id(value) in inside or len(inside) > DEEPEST:
        return id(value)
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        return [(_mark(key, inside), _mark(each, inside)) for key, each in value.items()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [_mark(each, inside) for each in value]
    return id(value), _mark(getattr(value, "__dict__", None), inside)


def _check(what: str, picks: Sequence[object], candidates: Sequence[GroupRow], count: int) -> None:
    """Raises UserError unless `picks` are `count` picks of different candidates."""
    rule = f"it must return {count} picks, each of a different candidate"
    known, seen = {row.group_id for row in candidates}, set[str]()
    for pick in picks:
        if not isinstance(pick, Pick):
            raise UserError(f"{what} returned {pick!r:.80}, which is no Pick; {rule}")
        name = pick.row.group_id
        if name in seen:
            raise UserError(f"{what} returned group {name} twice; {rule}")
        if name not in known:
            raise UserError(f"{what} returned group {name}, which is no candidate; {rule}")
        seen.add(name)
    if len(picks) != count:
        raise UserError(f"{what} returned {len(picks)} picks; {rule}")
