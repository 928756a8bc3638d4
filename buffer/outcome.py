"""What the service must know about a slot result, read without making the record.

The service passes slot results on as they came. It checks them as completely as whoever makes a
SlotResult of them, by the same rules (r3l.records), but builds no arrays.
"""

from __future__ import annotations

from struct import unpack
from typing import Any, NamedTuple

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
    policy version that sampled any of it, -1 without one."""

    role: Role
    slot: int
    status: SlotStatus
    cause: str = ""
    reward: float | None = None
    oldest: int = -1


def check(data: bytes | memoryview) -> Outcome:
    """The outcome an encoded slot result tells; raises RecordError for what is none."""
    try:
        return _check_quickly(codec.body(SlotResult, data))
    except quick.Unusual:
        return of(codec.decode(SlotResult, data))


def of(result: SlotResult) -> Outcome:
    """The outcome that a slot result is."""
    attempt = result.trajectory
    if attempt is None:
        return Outcome(result.role, result.slot, result.status, result.cause)
    told = attempt.reward, attempt.oldest_version
    return Outcome(result.role, result.slot, result.status, result.cause, *told)


def _check_quickly(data: memoryview) -> Outcome:
    result = _SLOT.fields(data)
    attempt = quick.optional(_ATTEMPT.fields, result.trajectory)
    check_slot(result, attempt)
    quick.optional(_REFLECTION.fields, result.reflection)
    for aux in result.aux:
        _AUX.read(memoryview(aux))
    if attempt is None:
        return Outcome(result.role, result.slot, result.status, result.cause)
    told = attempt.reward, _check_attempt(attempt)
    return Outcome(result.role, result.slot, result.status, result.cause, *told)


def _check_attempt(attempt: Any) -> int:
    """Raise unless an attempt is as it must be; returns its oldest policy version."""
    length, steps = len(attempt.response_mask.raw), len(attempt.actions)
    if not (
        attempt.token_ids.has("<i4", 4 * length, [length])
        and attempt.response_mask.has("|b1", length, [length])
        and attempt.logprobs.has("<f4", 4 * length, [length])
        and attempt.step_spans.has("<i4", 8 * steps, [steps, 2])
        and attempt.step_versions.has("<i4", 4 * steps, [steps])
        and attempt.step_seconds.has("<f4", 4 * steps, [steps])
    ):
        raise quick.Unusual
    edges = iter(unpack(f"<{2 * steps}i", attempt.step_spans.raw))
    check_attempt(attempt, list(zip(edges, edges, strict=True)), attempt.response_mask.raw)
    versions: tuple[int, ...] = unpack(f"<{steps}i", attempt.step_versions.raw)
    return min(versions)
