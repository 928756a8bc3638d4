"""The catalogue: the facts of all groups, read again when the store has changed."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from buffer.storage.counts import under
from buffer.storage.store import Store
from buffer.storage.stored_rows import GroupRow
from buffer.storage.transaction import PURPOSES
from buffer.tools import group_facts
from buffer.viewer.attempt_page import Texts, plain_group
from r3l import codec

GROUPS_LIMIT = 100_000  # newest groups of which tasks are made, and which filters look at
NAME = 32  # more letters than a group's id has
SHARE = 0.05  # share of a core that repeated reads may take
TREND = 40  # newest groups whose mean rewards a task shows

Facts = dict[str, Any]


class Catalogue:
    """Lists a store's groups, newest first, as facts (buffer.tools.group_facts). Threads may share
    a Catalogue. `change`: the newest transaction whose groups were all read; -1 before the first
    read."""

    kind = "store"

    def __init__(self, store: Store, texts: Texts) -> None:
        self.store, self.folder, self.texts = store, store.folder, texts
        self.change = -1
        self._facts: list[Facts] = []
        self._known: dict[bytes, tuple[int, Facts]] = {}  # by key: hash of the row, its facts
        self._lock = threading.Lock()
        self._next = 0.0  # monotonic second before which the store is not read again

    @property
    def gone(self) -> bool:
        return self.store.gone

    def group(self, group_id: str) -> Facts:
        return plain_group(self.store, group_id, self.texts)

    def summary(self) -> Facts:
        """Returns how many groups the store has, by purpose and state. Reads no groups, unless an
        earlier request asked for tasks or used a filter."""
        change = self.store.change
        if self.change >= 0:  # the page asks again for its list when this number grows
            self.read()
            change = self.change
        with self.store.read() as txn:
            counts, total = txn.counts(), txn.size("state")
            states = {each: dict(under(counts, f"group/{each}")) for each in PURPOSES}
            return {
                "change": change,
                "version": txn.progress().version,
                "total": total,
                "listed": min(total, GROUPS_LIMIT),
                "states": {purpose: found for purpose, found in states.items() if found},
            }

    def page(self, purpose: str, before: str, limit: int) -> tuple[int, list[Facts]]:
        """Returns the number of groups of a purpose ("": any), and the newest of them that are
        older than the group `before` ("": the newest of all). Reads no other groups."""
        known = next((each for each in PURPOSES if each == purpose), None)
        if purpose and known is None:
            return 0, []
        with self.store.read() as txn:
            total = txn.size("state")
            if known:
                total = sum(under(txn.counts(), f"group/{known}").values())
            names = islice(txn.candidates(known, None, None, before[:NAME]), limit)
            return total, [_facts(txn.existing_row(name)) for name in names]

    def read(self) -> Sequence[Facts]:
        """Returns the groups. Reads a changed store again, but no more often than SHARE allows. The
        returned list is never changed."""
        with self._lock:
            if time.monotonic() >= self._next and (change := self.store.change) != self.change:
                began = time.monotonic()
                self._read()
                self.change = change
                self._next = time.monotonic() + (time.monotonic() - began) / SHARE
            return self._facts

    def _read(self) -> None:
        """Reads all rows, but decodes only changed rows."""
        known: dict[bytes, tuple[int, Facts]] = {}
        with self.store.read() as txn:
            for key, data in islice(txn.scan("state", backwards=True), GROUPS_LIMIT):
                found = self._known.get(key)
                if found is None or found[0] != hash(data):
                    found = hash(data), _facts(codec.decode(GroupRow, data))
                known[key] = found
        self._known, self._facts = known, [facts for _, facts in known.values()]


def _facts(row: GroupRow) -> Facts:
    more = {"rewards": row.rewards, "failures": row.failures, "times": row.times}
    return group_facts.facts(row) | more


def tasks(groups: Iterable[Facts], order: str) -> list[Facts]:
    """Sums up each task. `groups` must be sorted newest first. `order`: `newest`, `corrections`
    (largest gain first), `lowest` (lowest mean reward first) or `most` (most groups first)."""
    by_task = defaultdict[tuple[str, str], list[Facts]](list)
    for group in groups:
        by_task[group["env"], group["task"]].append(group)
    lines = [_line(env, task, own) for (env, task), own in by_task.items()]
    if order == "corrections":
        lines.sort(key=lambda line: -line["gain"])
    elif order == "lowest":
        lines.sort(key=lambda line: (line["mean"] is None, line["mean"]))
    elif order == "most":
        lines.sort(key=lambda line: -line["groups"])
    return lines


def _line(env: str, task: str, groups: Sequence[Facts]) -> Facts:
    played = [group for group in groups if group["reward"] is not None]
    trend = [group["mean_reward"] for group in reversed(played[:TREND])]
    return {
        "task": task,
        "env": env,
        "newest": groups[0]["group"],
        "at": max(groups[0]["times"].values(), default=0.0),  # last change of its state
        "groups": len(groups),
        "gain": max(0.0, *(group["gain"] or 0.0 for group in groups)),
        "best": max((group["reward"] for group in played), default=None),
        "trend": trend,  # oldest first
        "mean": sum(trend) / len(trend) if trend else None,
    }
