"""What the service must know about a slot result, read without making the record.

The service passes slot results on as they came. It checks them as completely as whoever makes a
SlotResult of them, by the same rules (r3l.records), but builds no arrays.
"""

from __future__ import annotations

from struct import unpack_from
from typing import Any, NamedTuple
from zlib import crc32

from buffer.storage.checksums import checksum
from r3l import codec, quick
from r3l.records import (
    AuxSample,
    ReflectionRecord,
    Role,
    SlotResult,
    SlotStatus,
    Trajectory,
    check_attempt,
    check_slot,
)

_SLOT, _ATTEMPT = quick.reader(SlotResult), quick.reader(Trajectory)
_REFLECTION, _AUX = quick.reader(ReflectionRecord), quick.reader(AuxSample)


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
    """The outcome an encoded slot result tells; raises RecordError for what is none."""
    try:
        return _check_quickly(codec.body(SlotResult, data))
    except quick.Unusual:
        result = codec.decode(SlotResult, data)
    attempt, reward, oldest = result.trajectory, None, -1
    if attempt is not None:
        reward, oldest = attempt.reward, attempt.oldest_version
    return Outcome(
        result.role, result.slot, result.status, result.cause, reward, oldest, checksum(data)
    )


def _check_quickly(data: memoryview) -> Outcome:
    result = _SLOT.fields(data)
    attempt = quick.optional(_ATTEMPT.fields, result.trajectory)
    check_slot(result, attempt)
    quick.optional(_REFLECTION.fields, result.reflection)
    for aux in result.aux:
        _AUX.read(memoryview(aux))
    reward, oldest = (None, -1) if attempt is None else (attempt.reward, _check_attempt(attempt))
    return Outcome(
        result.role, result.slot, result.status, result.cause, reward, oldest, crc32(data)
    )


def _check_attempt(attempt: Any) -> int:
    """Raise unless an attempt is as it must be; returns its oldest policy version."""
    shapes, raw, steps = attempt.arrays.shapes, attempt.arrays.raw, len(attempt.actions)
    tokens = (len(raw) - 16 * steps) // 9
    spans, mask = 8 * tokens, 8 * tokens + 16 * steps  # where they begin (plain.arrays_of)
    if shapes != [[tokens], [tokens], [steps, 2], [steps], [steps], [tokens]] or (
        len(raw) != mask + tokens
    ):
        raise quick.Unusual
    numbers: tuple[int, ...] = unpack_from(f"<{3 * steps}i", raw, spans)  # and versions
    edges, versions = iter(numbers[: 2 * steps]), numbers[2 * steps :]
    check_attempt(attempt, list(zip(edges, edges, strict=True)), raw[mask:].tobytes())
    return min(versions)
