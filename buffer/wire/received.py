"""Reads results and reflections from a client. Refuses results and reflections of a sick engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from buffer.storage.result_checksums import checksum
from buffer.storage.transaction import Encoded
from r3l import codec
from r3l.errors import RecordError, SickResult
from r3l.records import Float32, ReflectionRecord, SlotResult
from r3l.rollout import engine_symptoms

R = TypeVar("R", SlotResult, ReflectionRecord)
K = TypeVar("K", int, str)


@dataclass(frozen=True)
class Received(Generic[R]):
    """A record as it was received. `newest`: the newest policy version in it, or -1."""

    record: R
    newest: int
    checksum: int
    encoded: Encoded


def read_result(encoded: Encoded) -> Received[SlotResult]:
    """Reads a slot's result. Raises RecordError for malformed bytes, SickResult for impossible
    log-probabilities or versions."""
    result = codec.decode(SlotResult, encoded)
    attempt, newest = result.trajectory, -1
    if attempt is not None:
        versions = attempt.step_versions.tolist() + attempt.step_newest_versions.tolist()
        newest = _check_versions(versions, attempt.logprobs)
    return Received(result, newest, checksum(encoded), encoded)


def read_reflection(encoded: Encoded) -> Received[ReflectionRecord]:
    """Reads a reflection. Raises the errors of `read_result`."""
    thought = codec.decode(ReflectionRecord, encoded)
    newest = _check_versions([thought.version], thought.logprobs)
    return Received(thought, newest, checksum(encoded, ReflectionRecord), encoded)


def read_result_as_given(encoded: Encoded) -> Received[SlotResult]:
    """Reads a slot's result that was not made by an engine of this run. Raises RecordError for
    malformed bytes."""
    return Received(codec.decode(SlotResult, encoded), -1, checksum(encoded), encoded)


def read_reflection_as_given(encoded: Encoded) -> Received[ReflectionRecord]:
    """Reads a reflection that was not made by an engine of this run. Raises RecordError."""
    thought = codec.decode(ReflectionRecord, encoded)
    return Received(thought, -1, checksum(encoded, ReflectionRecord), encoded)


def read_distinct(
    encoded: Sequence[msgspec.Raw], read: Callable[[Encoded], Received[R]], key: Callable[[R], K]
) -> dict[K, Received[R]]:
    """Reads the results or reflections of a request, keyed by slot or name. Raises RecordError if a
    slot or name occurs twice."""
    received = [read(memoryview(each)) for each in encoded]
    found = {key(each.record): each for each in received}
    if len(found) < len(received):
        raise RecordError("two results for one slot, or two reflections of one name")
    return found


def _check_versions(versions: Sequence[int], logprobs: Float32) -> int:
    """Returns the newest version. Raises SickResult."""
    newest = max(versions)
    symptom = engine_symptoms.of_versions(versions, newest)
    symptom = symptom or engine_symptoms.of_logprobs(logprobs)
    if symptom is not None:
        raise SickResult(symptom.message, cause=symptom.cause)
    return newest
