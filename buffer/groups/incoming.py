"""What the service must know about a slot result that a client sent."""

from __future__ import annotations

from typing import NamedTuple

from buffer.storage.checksums import checksum
from r3l import codec
from r3l.records import Role, SlotResult, SlotStatus


class Outcome(NamedTuple):
    """How a slot was resolved. `reward`: of its attempt, None without one; `oldest`: the oldest
    policy version that sampled any of it, -1 without one; `checksum`: as in
    buffer.storage.checksums."""

    role: Role
    slot: int
    status: SlotStatus
    cause: str
    reward: float | None
    oldest: int
    checksum: int


def check(data: bytes | memoryview) -> Outcome:
    """The outcome of an encoded slot result; raises RecordError for anything else."""
    result = codec.decode(SlotResult, data)
    attempt, reward, oldest = result.trajectory, None, -1
    if attempt is not None:
        reward, oldest = attempt.reward, attempt.oldest_version
    return Outcome(
        result.role, result.slot, result.status, result.cause, reward, oldest, checksum(data)
    )
