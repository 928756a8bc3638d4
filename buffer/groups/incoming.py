"""What the service keeps of a slot result that a client sent."""

from __future__ import annotations

from typing import NamedTuple

from buffer.storage.checksums import checksum
from r3l import codec
from r3l.records import Role, SlotResult, SlotStatus


class Outcome(NamedTuple):
    """How a slot was resolved, and its result as it was `encoded`.

    `reward`: of its attempt, None without one; `oldest`: oldest policy version that sampled any of
    it, -1 without one; `checksum`: as in buffer.storage.checksums.
    """

    role: Role
    slot: int
    status: SlotStatus
    cause: str
    reward: float | None
    oldest: int
    checksum: int
    encoded: bytes | memoryview

    @property
    def key(self) -> tuple[Role, int]:
        """The slot that was resolved."""
        return self.role, self.slot


def check(encoded: bytes | memoryview) -> Outcome:
    """The outcome of an encoded slot result; raises RecordError for anything else."""
    result = codec.decode(SlotResult, encoded)
    attempt = result.trajectory
    return Outcome(
        result.role,
        result.slot,
        result.status,
        result.cause,
        None if attempt is None else attempt.reward,
        -1 if attempt is None else attempt.oldest_version,
        checksum(encoded),
        encoded,
    )
