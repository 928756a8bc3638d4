"""Whether a batch that comes in parts fits in the memory of the process that draws it."""

from collections.abc import Sequence

from buffer.storage.stored_rows import DrawRow
from buffer.wire.sockets import Frame
from r3l.errors import LimitExceeded
from r3l.run.process.memory import free_memory

HELD = 4
"""The memory that a batch takes, as a multiple of its bytes: decoded, and as rows while they are
weighed."""


def check_fits(row: DrawRow, records: Sequence[Frame], left: int) -> None:
    """Raises LimitExceeded if the `left` records of a draw do not fit in memory next to those that
    came. Their size is estimated as the mean size of those that came."""
    came = sum(map(len, records))
    whole = came * (len(records) + left) // max(len(records), 1)
    free = free_memory()
    if HELD * whole - came > free:
        raise LimitExceeded(
            f"draw {row.draw_id}: {len(row.groups)} groups have about {whole / 1e9:.3g} GB and "
            f"take {HELD} times as much memory; {free / 1e9:.3g} GB are free after "
            f"{came / 1e9:.3g} GB came"
        )
