"""Whether a batch that comes in parts fits in the memory of the process that draws it."""

from collections.abc import Sequence

from buffer.storage.stored_rows import DrawRow
from buffer.wire.sockets import Frame
from r3l.errors import LimitExceeded
from r3l.run.process.memory import all_memory, free_memory
from r3l.text import size_text

HELD = 4
"""The memory that a batch takes, as a multiple of its bytes: decoded, and as rows while they are
weighed."""
TOO_LARGE = "batch_too_large"
"""Cause of a batch for which there is no memory."""


def check_fits(row: DrawRow, records: Sequence[Frame], left: int) -> None:
    """Raises LimitExceeded if the `left` missing records of a draw will not fit in memory next to
    those that have arrived. Assumes that they are as large as the mean of those. The message ends
    with what the user can do."""
    sizes = [*map(len, records)]
    came = sum(sizes)
    whole = came * (len(records) + left) // max(len(records), 1)
    free = free_memory()
    if HELD * whole - came > free:
        raise LimitExceeded(
            f"draw {row.draw_id}: {len(row.groups)} groups have about {size_text(whole)} and "
            f"take {HELD} times as much memory; {size_text(free)} are free after "
            f"{size_text(came)} came; {_remedy(len(row.groups), whole, max(sizes), free + came)}",
            cause=TOO_LARGE,
        )


def _remedy(groups: int, whole: int, largest: int, room: int) -> str:
    """Returns what would help. `whole` and `largest`: bytes of the batch and of its largest group.
    `room`: bytes that the batch may take."""
    used, memory = all_memory() - room, "add memory"
    if HELD * whole <= all_memory():
        memory = f"free some of the {size_text(used)} that are in use"
    fit = room * groups // (HELD * whole)
    if fit and HELD * largest <= room:
        return f"lower learner.groups_per_step to {fit}, or {memory}"
    return (
        f"not even one group fits: {memory}, or make groups smaller (algorithm.group_size, "
        "actor.max_model_len)"
    )
