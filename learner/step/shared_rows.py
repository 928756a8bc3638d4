"""Gives each rank the rows that it trains, one micro-batch at a time.

    rank 0        rows ─► micro-batches of all ranks ─► the next one of each rank ─┬─► its own
                                                                                   │ as bytes
    other ranks                                         the next micro-batch ◄─────┘

Only rank 0 has the batch and makes its rows. Another rank holds the rows of one micro-batch,
without the attempts that they were made of. They arrive in the formats that a micro-batch has in
the end (r3l.training.micro_batch.collate), so that a rank computes what rank 0 would.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from learner.step import collectives
from r3l.algorithms.rows import Retry, Row
from r3l.codec import RECORD_LIMIT, pack, unpack
from r3l.training.answers import Found
from r3l.training.micro_batch import micro_batches

ARRAYS = {
    "token_ids": np.dtype("<i4"),
    "mask": np.dtype("?"),
    "old_logprobs": np.dtype("<f4"),
    "advantages": np.dtype("<f4"),
    "weights": np.dtype("<f4"),
    "reference": np.dtype("<f4"),
    "fresh": np.dtype("?"),
}
"""The arrays of a row in the order in which they are sent, in the formats of a micro-batch."""
FACTS = ("loss", "distilled", "temperature", "reused", "measured")
HEAD = np.dtype("<i8")  # the length of what comes before the arrays


@dataclass(frozen=True)
class SentRow(Row):
    """A row on a rank that does not have its attempt. `named`: the retry that became this row, if
    any."""

    named: Retry | None = None

    @property
    def retry(self) -> Retry | None:
        return self.named


class SharedRows:
    """This rank's micro-batches of rank 0's rows; every rank has equally many. Each is sent when
    its turn comes. Making this object and iterating over it are collective. `rows`: the rows of
    rank 0; on other ranks, they are ignored. Other arguments: see
    r3l.training.micro_batch.micro_batches."""

    def __init__(
        self, rows: Sequence[Row], budget: int, device: torch.device, *, shared: bool
    ) -> None:
        self.rank, self.world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.device = device
        self.plan: list[list[list[Row]]] = []
        if self.rank == 0:
            self.plan = micro_batches(rows, budget, self.world, shared=shared)
        self._count = broadcast_facts({"count": len(self.plan[0])} if self.plan else None, device)[
            "count"
        ]

    def __len__(self) -> int:
        return int(self._count)

    def __iter__(self) -> Iterator[list[Row]]:
        return (self._of_turn(turn) for turn in range(len(self)))

    def _of_turn(self, turn: int) -> list[Row]:
        if self.world == 1:
            return self.plan[0][turn]
        if self.rank:
            return read_rows(collectives.scatter(None, self.device))
        others = [written(each[turn]) for each in self.plan[1:]]
        collectives.scatter([b"", *others], self.device)
        return self.plan[0][turn]

    def all_found(
        self, turn: int, top: int, found: Found | None
    ) -> Iterator[tuple[list[Row], Found]]:
        """Collects on rank 0 what each rank found about its micro-batch number `turn`. Yields each
        finding with its rows; yields nothing on other ranks. `found`: this rank's finding, None if
        it failed. Collective."""
        own = b"" if found is None else b"".join(each.tobytes() for each in found)
        all_own = collectives.gather(own, self.device) if self.world > 1 else [own]
        for rows, data in zip((each[turn] for each in self.plan), all_own, strict=True):
            if data:
                yield rows, _found(data, top)


def broadcast_facts(facts: dict[str, Any] | None, device: torch.device) -> dict[str, Any]:
    """Returns rank 0's facts on every rank. Other ranks give None. Collective."""
    if torch.distributed.get_world_size() == 1:
        assert facts is not None
        return facts
    return collectives.broadcast_facts(facts if torch.distributed.get_rank() == 0 else None, device)


def written(rows: Sequence[Row]) -> bytes:
    """Writes rows as bytes: their facts, then their arrays."""
    head = pack({"rows": [_facts(row) for row in rows]}, RECORD_LIMIT)
    arrays = [
        np.asarray(values, dtype).tobytes()
        for name, dtype in ARRAYS.items()
        for row in rows
        if (values := getattr(row, name)) is not None
    ]
    return b"".join([np.array(len(head), HEAD).tobytes(), head, *arrays])


def read_rows(data: memoryview) -> list[Row]:
    """Reads what `written` wrote. More bytes may follow."""
    at = HEAD.itemsize
    end = at + int(np.frombuffer(data[:at], HEAD)[0])
    facts = unpack(data[at:end], RECORD_LIMIT)["rows"]
    arrays: list[dict[str, Any]] = [{} for _ in facts]
    for name, dtype in ARRAYS.items():
        for own, fact in zip(arrays, facts, strict=True):
            if name in fact["has"]:
                at, end = end, end + fact["length"] * dtype.itemsize
                own[name] = np.frombuffer(data[at:end], dtype)
    return [_row(own, fact) for own, fact in zip(arrays, facts, strict=True)]


def _facts(row: Row) -> dict[str, Any]:
    return {
        "length": len(row.token_ids),
        "has": [name for name in ARRAYS if getattr(row, name) is not None],
        "retry": None if row.retry is None else list(row.retry),
        **{name: _plain(getattr(row, name)) for name in FACTS},
    }


def _plain(value: Any) -> Any:
    """Returns a value that an algorithm may have given, such as a number of NumPy or a member of a
    StrEnum, as one of Python's own."""
    if isinstance(value, str):
        return str.__str__(value)
    return value.item() if isinstance(value, np.generic) else value


def _row(arrays: dict[str, Any], fact: dict[str, Any]) -> Row:
    given = {name: fact[name] for name in FACTS}
    named = None if fact["retry"] is None else Retry(*fact["retry"])
    return SentRow(**arrays, **given, named=named)


def _found(data: bytes, top: int) -> Found:
    """Reads what a rank found about its masked tokens, M of them."""
    numbers = np.frombuffer(data, np.float32)
    count = len(numbers) // (2 + 2 * top)
    ends = np.cumsum([0, count, count, count * top, count * top])
    logprobs, entropy, ids, tops = (numbers[at:end] for at, end in pairwise(ends))
    return Found(
        logprobs, entropy, ids.view(np.int32).reshape(count, top), tops.reshape(count, top)
    )
