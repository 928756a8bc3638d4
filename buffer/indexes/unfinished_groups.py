"""The unfinished groups of one purpose, sorted in the orders that leases need."""

from collections.abc import Iterator

from buffer.indexes.sorted_keys import SortedKeys
from buffer.storage.stored_rows import GroupRow


class UnfinishedGroups:
    """Groups with open slots. No method looks at all of them, except `__iter__`."""

    def __init__(self) -> None:
        self._rows: dict[str, GroupRow] = {}
        self._deadlines = SortedKeys[tuple[float, str]]()  # of groups that an actor holds
        self._unheld = SortedKeys[str]()  # in lease order
        self._unheld_by_tag: dict[str, SortedKeys[str]] = {}
        self._unheld_by_version = SortedKeys[tuple[int, str]]()  # those that have a version

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[GroupRow]:
        """Yields all groups, as they are when it is called."""
        return iter(list(self._rows.values()))

    def put(self, row: GroupRow) -> None:
        """Adds a group, replaces it after a change, or removes it once it is finished."""
        before = self._rows.pop(row.group_id, None)
        if before is not None:
            self._discard(before)
        if row.unfinished:
            self._rows[row.group_id] = row
            self._add(row)

    @property
    def unheld(self) -> int:
        """Number of groups without a holder."""
        return len(self._unheld)

    def first_unheld(self) -> GroupRow | None:
        """Returns the group without a holder that was leased first, or None."""
        return self._rows[self._unheld[0]] if self._unheld else None

    def unheld_tags(self) -> list[tuple[str, GroupRow]]:
        """Returns each tag that has groups without a holder, with the first-leased of these
        groups."""
        return [(tag, self._rows[keys[0]]) for tag, keys in self._unheld_by_tag.items()]

    def unheld_older_than(self, version: int) -> list[GroupRow]:
        """Returns the groups without a holder whose oldest token is older than `version`."""
        return [self._rows[name] for _, name in self._unheld_by_version.below((version, ""))]

    def due_before(self, moment: float) -> list[GroupRow]:
        """Returns the held groups whose lease ends before `moment` (wall-clock seconds), earliest
        first."""
        return [self._rows[name] for _, name in self._deadlines.below((moment, ""))]

    def due_from(self, moment: float) -> int:
        """Counts the held groups whose lease ends at `moment` (wall-clock seconds) or later."""
        return len(self._deadlines) - self._deadlines.count_below((moment, ""))

    def _add(self, row: GroupRow) -> None:
        if row.has_holder:
            self._deadlines.add((row.deadline, row.group_id))
            return
        self._unheld.add(row.group_id)
        self._unheld_by_tag.setdefault(row.tag, SortedKeys()).add(row.group_id)
        if row.oldest_version >= 0:
            self._unheld_by_version.add((row.oldest_version, row.group_id))

    def _discard(self, row: GroupRow) -> None:
        if row.has_holder:
            self._deadlines.discard((row.deadline, row.group_id))
            return
        self._unheld.discard(row.group_id)
        own = self._unheld_by_tag[row.tag]
        own.discard(row.group_id)
        if not own:
            del self._unheld_by_tag[row.tag]
        self._unheld_by_version.discard((row.oldest_version, row.group_id))
