"""The base class of all records, tasks, and the checks that several records share."""

import math
import re
from typing import Annotated, Any, Literal, dataclass_transform, get_args

import msgspec
import numpy as np

from r3l.errors import RecordError
from r3l.text import LABEL_LIMIT, label, plain, plain_value, printable, shorten

Integer = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  # of 64 bits
Int32 = np.ndarray[Any, np.dtype[np.int32]]
Float32 = np.ndarray[Any, np.dtype[np.float32]]
Bool = np.ndarray[Any, np.dtype[np.bool_]]

Role = Literal["base", "distilled"]
SlotStatus = Literal["done", "skipped", "failed"]
GroupState = Literal["leased", "filling", "complete", "drawn", "trained", "expired"]
Purpose = Literal["train", "eval"]
GROUP_STATES: tuple[GroupState, ...] = get_args(GroupState)
SUCCESS = 1.0
"""The smallest reward R(τ) of a full success."""
LARGEST_REWARD = 1e9  # limit of an attempt's |reward|; sums and powers of rewards stay finite
TASK_ID_LIMIT = 380  # bytes; with the tag of an evaluation it must fit a key of the store
TASK_LIMIT = 1 << 20  # bytes of one task
MOST_PARTS = 16  # of a reward
NAME_LIMIT = 80  # characters of a reflection's name
PART = re.compile(r"[A-Za-z0-9_]{1,40}")


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base class of all records and messages. It is frozen and refuses unknown fields."""


class Task(Record):
    """One query or one seeded environment instance. `task_id` is stable across runs. Raises
    RecordError if a value cannot be stored."""

    task_id: str
    env: str
    seed: Integer
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            task_id = plain(self.task_id, "its id", TASK_ID_LIMIT)
            if not task_id or "\0" in task_id:
                raise ValueError("its id is empty or holds a NUL")
            options = plain_value(self.options, "options")
            if (size := len(msgspec.msgpack.encode(options))) > TASK_LIMIT:
                raise ValueError(f"options have {size} bytes; the limit is {TASK_LIMIT}")
            known = {"task_id": task_id, "env": plain(self.env, "env"), "options": options}
        except ValueError as error:
            name = shorten(printable(str(self.task_id)), 80)
            raise RecordError(f"task {name!r}: {error}", field="options") from None
        for field, value in known.items():
            msgspec.structs.force_setattr(self, field, value)


def role_of(of: int) -> Role:
    """Returns "distilled" for an attempt that retries the slot `of`, "base" if `of` is -1."""
    return "distilled" if of >= 0 else "base"


def check_cause(cause: str) -> None:
    """Raises RecordError unless `cause` is printable text of at most LABEL_LIMIT bytes."""
    if cause != label(cause):
        rule = f"at most {LABEL_LIMIT} bytes of printable text"
        raise RecordError(f"cause {cause[:80]!a}: must be {rule}", field="cause")


def check_numbers(name: str, numbers: dict[str, float]) -> None:
    """Raises RecordError unless `numbers` are few, named and finite."""
    named = all(PART.fullmatch(key) for key in numbers)
    if not named or len(numbers) > MOST_PARTS or not all(map(math.isfinite, numbers.values())):
        rule = f"at most {MOST_PARTS} finite numbers, with names of letters, digits and _"
        raise RecordError(f"{name} {numbers!r:.200}: must be {rule}", field=name)


def check_array(name: str, value: Any, dtype: str, shape: tuple[int, ...]) -> None:
    if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
        got = f"a {type(value).__name__}, not an array"
        if isinstance(value, np.ndarray):
            got = f"{value.dtype}{value.shape}"
        raise RecordError(f"{name} is {got}; it must be {dtype}{shape}", field=name)
