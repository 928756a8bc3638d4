"""A unit of work: writes to the store in one transaction and updates the index."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from msgspec.structs import replace

from buffer.groups import states
from buffer.groups.states import Trigger
from buffer.indexes.index import Index
from buffer.sampling.algorithm_calls import AlgorithmCalls, Method
from buffer.sampling.live_sampler import LiveSampler
from buffer.sampling.timed_worker import Ask
from buffer.storage import counts
from buffer.storage.stored_rows import ArchivePlace, DrawRow, GroupRow
from buffer.storage.transaction import Parts, Txn
from r3l.algorithms.algorithm import Algorithm
from r3l.models.vocabulary import vocabulary
from r3l.records import GroupState
from r3l.run.settings.buffer import BufferConfig

T = TypeVar("T")


@dataclass(frozen=True)
class Rules:
    """The settings of a run that the buffer obeys. `groups_per_step`: groups of a training step.
    `model`: the run's setting `model`."""

    buffer: BufferConfig
    groups_per_step: int
    seed: int
    algorithm: Algorithm
    model: str = ""

    @cached_property
    def sampler(self) -> LiveSampler:
        return LiveSampler(self.buffer.sampler)

    @cached_property
    def vocabulary(self) -> int | None:
        """The number of tokens that the run's model knows, or None if its folder is not here."""
        return vocabulary(self.model)

    @cached_property
    def calls(self) -> AlgorithmCalls:
        return AlgorithmCalls(self.algorithm)


class UnitOfWork:
    """One write transaction. `now`: wall-clock seconds. `full`: why new results are refused, or ""
    if they are accepted."""

    def __init__(self, txn: Txn, index: Index, rules: Rules, now: float, full: str = "") -> None:
        self.txn, self.index, self.now, self.full = txn, index, now, full
        self.config = rules.buffer
        self.groups_per_step = rules.groups_per_step
        self.seed = rules.seed
        self.algorithm, self.calls = rules.algorithm, rules.calls
        self._rules = rules
        self._progressed = False
        self._counted: set[str] = set()

    @property
    def sampler(self) -> LiveSampler:
        """The run's sampler, in the state that the store has."""
        if not self.index.sampler_restored:
            self._rules.sampler.restore(self.txn.sampler_state())
            self.index.sampler_restored = True
        return self._rules.sampler

    def forget_sampler(self) -> None:
        """Makes the next draw begin with the sampler's state in the store, because the sampler's
        last picks were not drawn."""
        self.index.sampler_restored = False

    @property
    def vocabulary(self) -> int | None:
        """The number of tokens that the run's model knows (Rules.vocabulary)."""
        return self._rules.vocabulary

    def find(self, group_id: str) -> GroupRow | None:
        """Returns the row of a live or closed group, or None if it was evicted or never made."""
        return self.index.live.get(group_id) or self.txn.row(group_id)

    def row(self, group_id: str) -> GroupRow:
        """Returns the row of a live or closed group. Raises NotFound if there is none."""
        return self.index.live.get(group_id) or self.txn.existing_row(group_id)

    def save(self, row: GroupRow, by: Trigger) -> GroupRow:
        """Writes a group's row. Raises IllegalMove if the trigger may not make the change."""
        before = self.find(row.group_id)
        states.check_move(before, row, by)
        self.txn.put_row(row)
        if before is None or before.state != row.state:
            self.txn.list_state(row, before)
        self._add(counts.added(before, row))
        self.index.put(row)
        return row

    def move(self, row: GroupRow, state: GroupState, by: Trigger, **changes: Any) -> GroupRow:
        """Moves a group to `state` and writes its row."""
        times = row.times | {state: self.now}
        return self.save(row.with_changes(state=state, times=times, **changes), by)

    def evict(self, row: GroupRow) -> None:
        states.check_evict(row)
        self.txn.evict(row)
        self.index.forget_replay(row)
        self._add(counts.evicted(row))

    def archive(self, row: GroupRow, place: ArchivePlace) -> None:
        """Deletes the record of a closed group, whose archived copy was compared with it."""
        states.check_evict(row)
        after = row.with_changes(archived=place)
        self.txn.put_row(after)
        self.txn.delete_record(after)
        self.index.forget_replay(row)
        self._add(counts.added(row, after))

    def expire(self, row: GroupRow, cause: str, by: Trigger, last: Parts | None = None) -> GroupRow:
        """Expires a group and records the cause. The group's results stay readable.

        `last`: the results and reflections of the last put, which are not in the tables `part` and
        `reflection`.
        """
        has_record = not row.unfinished
        row = self.move(row, "expired", by, cause=cause)
        if not has_record:
            self.txn.write_record(row, last)
        return row

    def decide(
        self, method: Method, decide: Callable[[Ask], Any], check: Callable[[Any], T], default: T
    ) -> T:
        """Lets a method of the algorithm decide (AlgorithmCalls.call). Returns `default` if the
        algorithm does not have the method, or if the call fails, which is counted."""
        if not self.calls.overrides(method):
            return default
        decision = self.calls.call(method, decide, check)
        if decision is None:
            self.count(f"algorithm_failed/{method}")
            return default
        return decision

    def save_draw(self, draw: DrawRow) -> None:
        self.txn.put_draw(draw)
        self.index.put_draw(draw)

    def update_progress(self, **changes: Any) -> None:
        """Changes fields of `index.progress`. `finish` writes the progress."""
        self.index.progress = replace(self.index.progress, **changes)
        self._progressed = True

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a count. `finish` writes it."""
        self.index.counts[name] += amount
        self._counted.add(name)

    def finish(self) -> None:
        """Writes counts and progress. Call this last in the transaction."""
        for name in self._counted:
            self.txn.put_count(name, self.index.counts[name])
        if self._progressed:
            self.txn.put_progress(self.index.progress)

    def _add(self, change: dict[str, int]) -> None:
        for name, amount in change.items():
            if amount:
                self.count(name, amount)
