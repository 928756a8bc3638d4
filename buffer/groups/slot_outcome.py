"""Decodes a slot result from a client into the outcome that the service keeps."""

from typing import NamedTuple

from buffer.storage.result_checksums import checksum
from r3l import codec
from r3l.errors import SickResult
from r3l.records import Role, SlotResult, SlotStatus
from r3l.rollout import engine_symptoms


class SlotOutcome(NamedTuple):
    """How a slot was resolved. `oldest`: the attempt's oldest policy version. `newest`: the newest
    version in the attempt or the reflection. A missing version is -1."""

    role: Role
    slot: int
    status: SlotStatus
    cause: str
    reward: float | None
    oldest: int
    newest: int
    checksum: int
    encoded: bytes | memoryview

    @property
    def key(self) -> tuple[Role, int]:
        return self.role, self.slot


def decode_outcome(encoded: bytes | memoryview) -> SlotOutcome:
    """Decodes a slot result. Raises RecordError for malformed bytes. Raises SickResult for
    impossible log-probabilities or versions."""
    result = codec.decode(SlotResult, encoded)
    attempt, reflection = result.trajectory, result.reflection
    versions = list[int]()
    if attempt is not None:
        versions += attempt.step_versions.tolist() + attempt.step_newest_versions.tolist()
    versions += [] if reflection is None else [reflection.version]
    newest = max(versions, default=-1)
    symptom = engine_symptoms.of_versions(versions, newest)
    if symptom is None and attempt is not None:
        symptom = engine_symptoms.of_logprobs(attempt.logprobs)
    if symptom is not None:
        raise SickResult(symptom.message, cause=symptom.cause)
    return SlotOutcome(
        result.role,
        result.slot,
        result.status,
        result.cause,
        None if attempt is None else attempt.reward,
        -1 if attempt is None else attempt.oldest_version,
        newest,
        checksum(encoded),
        encoded,
    )
