"""Every failure that r3l names, each also a standard exception.

An error is a sentence plus `facts`, plain values a program can read. Both survive pickling
and the wire (`to_wire`, `from_wire`).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class R3LError(Exception):
    """A named failure: one sentence and the facts behind it (plain msgpack values)."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.facts)

    @property
    def cause(self) -> str:
        """Short name under which this failure is counted."""
        return str(self.facts.get("cause", type(self).__name__))


def _rebuild(kind: type[R3LError], message: str, facts: dict[str, Any]) -> R3LError:
    return kind(message, **facts)


class UserError(R3LError, ValueError):
    """Something the user asked for cannot be done: names the thing, the rule and what to do."""


class RecordError(R3LError, ValueError):
    """A record, message or array that is malformed."""


class SchemaVersionError(RecordError):
    """A record written by a newer schema than this code reads."""


class SickResult(RecordError):
    """A result that shows that its engine computes wrongly; `cause`: see r3l.rollout.symptoms."""


class ReflectionError(R3LError, ValueError):
    """A reflection that cannot be used; `cause` is one of r3l.rollout.reflection.CAUSES."""


class EpisodeError(R3LError, RuntimeError):
    """An attempt that ended without a trajectory; its slot is resolved as failed."""


class EnvironmentFailed(EpisodeError):
    """The environment raised, hung or returned something that is not an observation."""


class ReplayDiverged(EpisodeError):
    """Replaying a prefix gave another observation than the one recorded."""


class EngineFailed(EpisodeError):
    """The inference engine could not finish a request."""


class EngineDead(R3LError, RuntimeError):
    """The inference engine is gone. No attempt is to blame; the actor releases its leases."""


class EngineSick(EngineDead):
    """The inference engine computes wrongly; `cause`: see r3l.rollout.symptoms."""


class BufferError_(R3LError, RuntimeError):
    """A request the buffer refused; the store is as it was before the request."""


class BufferUnavailable(BufferError_, TimeoutError):
    """No reply from the buffer within the deadline."""


class ClientClosed(BufferError_, ValueError):
    """The client was closed before or during the request."""


class LeaseLost(BufferError_):
    """The lease ran out or belongs to another actor."""


class NotFound(BufferError_, LookupError):
    """No such group, draw or task."""


class LimitExceeded(BufferError_, ValueError):
    """A message, group or request beyond a configured limit."""


class Conflict(BufferError_):
    """A request that contradicts what the store already holds."""


class DrawExpired(Conflict):
    """A draw was taken from its silent consumer, and others have drawn its groups since."""


class IllegalMove(BufferError_, RuntimeError):
    """A forbidden change of a group's state: a fault of the buffer, not of a client."""


class UnknownOperation(BufferError_, ValueError):
    """A request for an operation the service does not offer."""


class NotAllowed(BufferError_, PermissionError):
    """A request that this client's key does not entitle it to."""


class StoreError(BufferError_, OSError):
    """The store cannot be opened or written."""


class WeightsError(R3LError, RuntimeError):
    """A weight set that did not arrive whole or does not fit the model."""


class PublisherUnavailable(WeightsError, TimeoutError):
    """The weight publisher did not reply within the deadline."""


class RankLost(R3LError, TimeoutError):
    """A rank of the learner hangs or has exited; the other ranks exit too."""


class LearnerHung(R3LError, TimeoutError):
    """A piece of the learner's work took too long; its process exits."""


class TrainingStopped(R3LError, RuntimeError):
    """The learner ends a run that would fail again; `r3l-learner` exits with code 3."""


class RestartNeeded(R3LError, RuntimeError):
    """The learner must continue in new processes; `r3l-learner` exits with code 4."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggests a known name for an unknown one: one that ends with it, or the most similar one; ""
    without any."""
    names = list(known)
    near = [candidate for candidate in names if candidate.rpartition(".")[2] == name]
    near = near or get_close_matches(name, names, n=3, cutoff=0.7)
    near.sort(
        key=lambda candidate: sorted(candidate) != sorted(name)
    )  # letters in another order are likely
    return f" (did you mean {near[0]}?)" if near else ""


def _tree(root: type[R3LError]) -> dict[str, type[R3LError]]:
    kinds = {root.__name__: root}
    for child in root.__subclasses__():
        kinds.update(_tree(child))
    return kinds


def to_wire(error: R3LError) -> dict[str, Any]:
    """Returns the error as plain values for an error reply."""
    return {"error": type(error).__name__, "message": str(error), "facts": error.facts}


def from_wire(values: dict[str, Any]) -> R3LError:
    """Rebuilds the error of an error reply; one of an unknown name becomes an R3LError."""
    kind = _tree(R3LError).get(str(values.get("error")), R3LError)
    facts = values.get("facts")
    message = str(values.get("message", "the peer gave no message"))
    return kind(message, **(facts if isinstance(facts, dict) else {}))
