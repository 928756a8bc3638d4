"""Copies finished groups to a new store, from which a learner can train without actors.

stores ─► groups with a trajectory ─► complete, never drawn ─► new store, to be served

An inserted group becomes like one that actors played, but its attempts keep their source.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from buffer.sampling import task_history
from buffer.storage import counts
from buffer.storage.result_checksums import checksum
from buffer.storage.store import Store
from buffer.storage.stored_rows import GroupRow, Regrade, RunPosition
from buffer.storage.transaction import Txn, parts_of
from r3l import codec
from r3l.errors import UserError
from r3l.files.new_folder import new_folder
from r3l.records import Group, SlotResult

AT_ONCE = 64  # groups in a transaction


def finished_groups(store: Store, *, contrast: bool) -> Iterator[tuple[GroupRow, Group]]:
    """Yields the finished training groups that have a trajectory, including stale groups. With
    `contrast`, skips groups whose rewards are equal."""
    with store.read() as txn:
        for row in txn.rows():
            finished = row.purpose == "train" and not row.unfinished and row.done
            if not finished or not task_history.usable(row):
                continue
            if (row.contrast or not contrast) and txn.record_is_sound(row):
                yield row, codec.decode(Group, txn.record(row.group_id))


def copy_finished(
    folders: Sequence[Path], to: Path, *, contrast: bool, on_group: Callable[[Group], object]
) -> None:
    """Copies finished groups to a new store in the folder `to`. Raises UserError if a store has no
    group to copy, or if `to` is not empty."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("--offline names a store twice; name each once")
    with ExitStack() as opened:
        sources = [opened.enter_context(Store(folder, read_only=True)) for folder in folders]
        for source in sources:
            if next(finished_groups(source, contrast=contrast), None) is None:
                raise UserError(
                    f"store {source.folder}: holds no finished training group"
                    f"{' whose rewards differ' if contrast else ''}; give the store of a run"
                )
        building = opened.enter_context(new_folder(to, "store"))
        copy = _Copy(opened.enter_context(Store(building, map_gib=None)))
        regrades: list[Regrade] = []
        for source in sources:
            copy.add(finished_groups(source, contrast=contrast), on_group)
            with source.read() as txn:
                regrades += txn.regrades()
        copy.finish(regrades)


class _Copy:
    """The new store while it is being filled: its newest group, tasks and counts."""

    def __init__(self, target: Store) -> None:
        self._target, self._last = target, 0
        self._tasks: dict[str, int] = {}
        self._counts = Counter[str]()

    def add(
        self, finished: Iterator[tuple[GroupRow, Group]], on_group: Callable[[Group], object]
    ) -> None:
        before = self._last
        while some := list(islice(finished, AT_ONCE)):
            with self._target.write() as txn:
                for row, group in some:
                    on_group(group)
                    self._last = before + int(row.group_id[1:])
                    self._put(txn, row, _renumbered(group, before) if before else group)

    def finish(self, regrades: Sequence[Regrade]) -> None:
        """Writes the counts, and how the rewards came to be. Marks the store as closed to new
        groups."""
        with self._target.write() as txn:
            txn.put_regrades(regrades)
            for name, number in self._counts.items():
                txn.put_count(name, number)
            txn.put_progress(RunPosition(closed=True))

    def _put(self, txn: Txn, before: GroupRow, group: Group) -> None:
        index = self._tasks.setdefault(group.task.task_id, len(self._tasks))
        txn.add_task("train", "", index, group.task)
        group = replace(group, tag="")  # an inserted group has one
        sums = {slot: checksum(data) for slot, data in parts_of(group).results.items()}
        row = before.with_changes(
            group_id=group.group_id,
            task_index=index,
            plan=group.plan,
            checksums=tuple(sums[slot] for slot in before.resolved_slots),
            state="complete",
            cause="",
            replaced=False,
            rid="",
            draw_id=0,
            steps=(),
            tag="",
            source="",
            archived=None,
            times={"complete": min(before.times.values())} | before.times,
        )
        txn.put_row(row)
        txn.add_tag(row)
        txn.list_state(row)
        txn.put_record(row, group)
        self._counts.update(counts.added(None, row))


def _renumbered(group: Group, more: int) -> Group:
    """Returns a group whose number is higher by `more`, as are those of the groups that it names:
    in its plan, and as origins of its attempts."""

    def moved(group_id: str) -> str:
        return f"g{int(group_id[1:]) + more:010d}"

    def with_origin(result: SlotResult) -> SlotResult:
        attempt = result.trajectory
        if attempt is None or attempt.origin is None:
            return result
        origin = replace(attempt.origin, group_id=moved(attempt.origin.group_id))
        return replace(result, trajectory=replace(attempt, origin=origin))

    handed = tuple(replace(key, group_id=moved(key.group_id)) for key in group.plan.handed)
    return replace(
        group,
        group_id=moved(group.group_id),
        plan=replace(group.plan, handed=handed),
        results=tuple(map(with_origin, group.results)),
    )
