"""The training groups that may be drawn, sorted in the orders that draws need.

complete ──────────────────────────────────────────┐
replayable: resting ── cooldown is over ─► rested ─┴─► candidates of a draw
"""

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import islice
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from buffer.indexes.sorted_keys import SortedKeys
from buffer.storage.stored_rows import GroupRow

NUMBERS = 2  # of a group, which samplers weigh


def numbers_of(candidates: Sequence[GroupRow]) -> npt.NDArray[np.float64]:
    """Returns the priority of each candidate and how many steps trained on it, [candidates, 2].
    Does not look at the rows of Candidates."""
    if isinstance(candidates, Candidates):
        return candidates.numbers()
    return np.array([_numbers(row) for row in candidates]).reshape(-1, NUMBERS)


def _numbers(row: GroupRow) -> tuple[float, float]:
    """A group's priority, by default its contrast, and the number of its steps."""
    return row.contrast if row.priority is None else row.priority, row.uses


class Candidates(Sequence[GroupRow]):
    """The rows of some keys, in the order of the keys. A row is looked up when it is used. `names`:
    holds the ids of the groups."""

    def __init__(
        self,
        keys: SortedKeys[Any],
        length: int,
        row: Callable[[Any], GroupRow],
        names: Container[str],
    ) -> None:
        self._keys, self._length, self._row, self.names = keys, length, row, names

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[GroupRow]:
        return map(self._row, islice(self._keys, self._length))

    def numbers(self) -> npt.NDArray[np.float64]:
        """Returns the numbers of all rows, [rows, NUMBERS]."""
        return self._keys.numbers()[: self._length]

    @overload
    def __getitem__(self, place: int) -> GroupRow: ...
    @overload
    def __getitem__(self, place: slice) -> list[GroupRow]: ...
    def __getitem__(self, place: int | slice) -> GroupRow | list[GroupRow]:
        if isinstance(place, slice):
            start, stop, step = place.indices(self._length)
            if step > 0:
                return list(map(self._row, islice(self._keys, start, max(start, stop), step)))
            return list(self)[place]
        at = place + self._length if place < 0 else place
        if not 0 <= at < self._length:
            raise IndexError(place)
        return self._row(self._keys[at])


class DrawableGroups:
    """Complete training groups, and trained and inserted ones that may be drawn again. No method
    looks at all of them, except `unasked` after a restart."""

    def __init__(self) -> None:
        self._complete: dict[str, GroupRow] = {}
        self._replayable: dict[str, GroupRow] = {}
        self._fresh = SortedKeys[str](NUMBERS)  # complete ones, in lease order
        self._ready = SortedKeys[str](NUMBERS)  # these and the rested ones, in lease order
        self._by_version = SortedKeys[tuple[int, str]]()  # complete ones, by oldest version
        self._by_step = SortedKeys[tuple[int, str]](NUMBERS)  # replayable ones, by the last step
        self._replays_by_version = SortedKeys[tuple[int, str]]()  # those that have an age
        self._since = -1  # replayable groups whose last step is not later have rested
        self.admitted: set[str] = set()  # by the algorithm, of all groups that may be drawn
        self._unasked: set[str] = set()  # the others

    # ── what there is ───────────────────────────────────────────────────────────────────

    @property
    def fresh(self) -> Candidates:
        """The complete groups, in lease order."""
        return Candidates(self._fresh, len(self._fresh), self._row, self._complete)

    @property
    def ready(self) -> Candidates:
        """The complete and the rested groups, in lease order."""
        return Candidates(self._ready, len(self._ready), self._row, self._ready)

    @property
    def rested(self) -> Candidates:
        """The trained and inserted groups that may be drawn now, beginning with the one that was
        trained longest ago."""
        count = self._by_step.count_below((self._since + 1, ""))
        return Candidates(self._by_step, count, lambda key: self._row(key[1]), self._replayable)

    @property
    def resting(self) -> int:
        """Number of trained groups that may be drawn only after a cooldown."""
        return len(self._by_step) - len(self.rested)

    def find(self, group_id: str) -> GroupRow | None:
        """Returns a group that may be drawn now, or None."""
        return self._row(group_id) if group_id in self._ready else None

    def complete_older_than(self, version: int) -> list[GroupRow]:
        """Returns the complete groups whose oldest token is older than `version`."""
        return [self._complete[name] for _, name in self._by_version.below((version, ""))]

    def replays_older_than(self, version: int) -> list[GroupRow]:
        """Returns the replayable groups whose oldest token is older than `version`."""
        found = self._replays_by_version.below((version, ""))
        return [self._replayable[name] for _, name in found]

    def unasked(self) -> list[GroupRow]:
        """Returns the groups that the algorithm has not admitted, in lease order."""
        return list(map(self._row, sorted(self._unasked)))

    # ── changes ─────────────────────────────────────────────────────────────────────────

    def put(self, row: GroupRow, *, replayable: bool) -> None:
        """Adds a group, replaces it after a change, or removes it if it may not be drawn any
        longer. `replayable`: it is a trained or inserted group that may be drawn again."""
        complete = row.state == "complete" and row.purpose == "train"
        self._remove(row.group_id)
        if complete:
            self._complete[row.group_id] = row
            self._fresh.add(row.group_id, _numbers(row))
            self._ready.add(row.group_id, _numbers(row))
            self._by_version.add((row.oldest_version, row.group_id))
        elif replayable:
            self._replayable[row.group_id] = row
            self._by_step.add(_last(row), _numbers(row))
            if _last(row)[0] <= self._since:
                self._ready.add(row.group_id, _numbers(row))
            if not row.source:
                self._replays_by_version.add((row.oldest_version, row.group_id))
        if row.closed and not replayable:
            self.admitted.discard(row.group_id)
        if (complete or replayable) and row.group_id not in self.admitted:
            self._unasked.add(row.group_id)

    def admit(self, group_id: str) -> None:
        """Notes that the algorithm admits a group."""
        self.admitted.add(group_id)
        self._unasked.discard(group_id)

    def forget(self, group_id: str) -> None:
        """Removes a trained group from the groups that may be drawn again."""
        if group_id in self._replayable:
            self._remove(group_id)
        self.admitted.discard(group_id)

    def rest_until(self, since: int) -> None:
        """Lets the replayable groups whose last step is not later than `since` be drawn."""
        since = max(since, -1)
        low, high = sorted((self._since, since))
        if low == high:
            return
        for _, name in self._by_step.between((low + 1, ""), (high + 1, "")):
            if since > self._since:
                self._ready.add(name, _numbers(self._replayable[name]))
            else:
                self._ready.discard(name)
        self._since = since

    def _row(self, group_id: str) -> GroupRow:
        return self._complete.get(group_id) or self._replayable[group_id]

    def _remove(self, group_id: str) -> None:
        self._unasked.discard(group_id)
        if (row := self._complete.pop(group_id, None)) is not None:
            self._fresh.discard(group_id)
            self._ready.discard(group_id)
            self._by_version.discard((row.oldest_version, group_id))
        if (row := self._replayable.pop(group_id, None)) is not None:
            self._ready.discard(group_id)
            self._by_step.discard(_last(row))
            self._replays_by_version.discard((row.oldest_version, group_id))


def _last(row: GroupRow) -> tuple[int, str]:
    """Returns the last step that trained on a group, −1 if there is none, and its id."""
    return row.step, row.group_id
