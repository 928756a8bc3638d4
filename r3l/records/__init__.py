"""The records of attempts, reflections and explore groups.

Shapes: L tokens in a trajectory, K steps (K ≥ 1 turns of the policy). Steps count from 0. Records
are frozen. r3l.codec checks the types of fields when it reads a record. Every new record checks
that its arrays have the right dtypes and shapes, and that its fields agree with each other.
"""

from r3l.records.groups import (
    AttemptKey,
    Group,
    GroupPlan,
    Recalled,
    ReflectionRecord,
    SlotResult,
    check_reflection_name,
    done,
)
from r3l.records.record import (
    GROUP_STATES,
    LARGEST_REWARD,
    MOST_PARTS,
    NAME_LIMIT,
    PART,
    SUCCESS,
    TASK_ID_LIMIT,
    TASK_LIMIT,
    Bool,
    Float32,
    GroupState,
    Int32,
    Integer,
    Purpose,
    Record,
    Role,
    SlotStatus,
    Task,
    check_cause,
    role_of,
)
from r3l.records.trajectory import (
    Extra,
    Origin,
    Segment,
    Shown,
    Trajectory,
)

__all__ = [
    "GROUP_STATES",
    "LARGEST_REWARD",
    "MOST_PARTS",
    "NAME_LIMIT",
    "PART",
    "SUCCESS",
    "TASK_ID_LIMIT",
    "TASK_LIMIT",
    "AttemptKey",
    "Bool",
    "Extra",
    "Float32",
    "Group",
    "GroupPlan",
    "GroupState",
    "Int32",
    "Integer",
    "Origin",
    "Purpose",
    "Recalled",
    "Record",
    "ReflectionRecord",
    "Role",
    "Segment",
    "Shown",
    "SlotResult",
    "SlotStatus",
    "Task",
    "Trajectory",
    "check_cause",
    "check_reflection_name",
    "done",
    "role_of",
]
