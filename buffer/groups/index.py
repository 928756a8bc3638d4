"""What the service keeps in memory: every group that can still change, and counts of the rest.

Rebuilt from the store at start. Only the writer thread touches it, inside a transaction; a
transaction that fails is followed by a rebuild, so memory never says more than the disk.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter

from buffer.storage.counts import under
from buffer.storage.rows import DrawRow, Drop, GroupRow, Progress
from buffer.storage.store import Store
from buffer.storage.transaction import Txn
from r3l.config import BufferConfig
from r3l.records import Purpose


class Index:
    """Live groups, open draws, figures and progress.

    `live`: groups that are not closed, by id. `lease_rids`, `draw_rids`: requests answered with
    a lease or an open draw. `counts`: figures by the names of buffer.storage.counts. `drops`: how
    often what was lost. `reuse`: times a group may be trained on. `undone`: the last draw of a
    consumer at a version, where it was given back or rewound since the service started. `heard`:
    wall-clock second at which a consumer that holds draws spoke last
    (buffer.groups.draw_deadlines).
    """

    def __init__(self, reuse: int = 1) -> None:
        self.reuse = reuse
        self.live: dict[str, GroupRow] = {}
        self._unfinished: dict[Purpose, dict[str, GroupRow]] = {"train": {}, "eval": {}}
        self._unheld: dict[Purpose, dict[str, GroupRow]] = {"train": {}, "eval": {}}
        self._complete: dict[str, GroupRow] = {}
        self._complete_ids: list[str] = []  # in order
        self._complete_since: dict[int, set[str]] = {}  # by the oldest policy version in them
        self._replayable: dict[str, GroupRow] = {}
        self.lease_rids: dict[str, str] = {}
        self.draws: dict[int, DrawRow] = {}
        self.draw_rids: dict[str, int] = {}
        self.returned: dict[tuple[str, int], DrawRow] = {}
        self.last_seen: dict[str, float] = {}
        self.tasks: Counter[tuple[Purpose, str]] = Counter()
        self.counts: Counter[str] = Counter()
        self.drops: Counter[Drop] = Counter()
        self.progress = Progress()
        self.next_group = 1
        self.next_draw = 1

    @classmethod
    def load(cls, store: Store, config: BufferConfig) -> Index:
        """The index that the store's contents imply."""
        index = cls(config.sampler.reuse)
        with store.read() as txn:
            for row in txn.live():
                index.put(row)
            for draw_id in {row.draw_id for row in index.live.values() if row.draw_id}:
                drawn = txn.draw(draw_id)
                if drawn is not None:
                    index.put_draw(drawn)
            for key in txn.keys("task"):
                purpose, tag = key.split(b"\0", 2)[:2]
                index.tasks["eval" if purpose == b"eval" else "train", tag.decode()] += 1
            index.counts, index.progress = txn.counts(), txn.progress()
            index.drops.update(dict(txn.drops()))
            index.next_group = int(txn.last_group()[1:] or 0) + 1
            index.next_draw = txn.last_draw() + 1
            if index.reuse > 1:
                index._load_replayable(txn, config.max_staleness)
        return index

    def put(self, row: GroupRow) -> None:
        """Take in a group's new state."""
        before = self.live.get(row.group_id)
        if before is not None:
            self.lease_rids.pop(before.rid, None)
        _keep(self.live, row, not row.closed)
        _keep(self._unfinished[row.purpose], row, row.unfinished)
        _keep(self._unheld[row.purpose], row, row.unfinished and not row.held)
        self._keep_complete(row, row.state == "complete" and row.purpose == "train")
        again = row.state == "trained" and len(row.steps) < self.reuse
        _keep(self._replayable, row, again)
        if row.unfinished and row.rid:
            self.lease_rids[row.rid] = row.group_id
        self.next_group = max(self.next_group, int(row.group_id[1:]) + 1)

    def put_draw(self, draw: DrawRow) -> None:
        """Take in a draw's new outcome; open draws are kept, and those to be done again."""
        again = draw.outcome in ("released", "expired", "rewound")
        at = draw.consumer, draw.version
        if again:
            self.returned[at] = draw
        else:
            self.returned.pop(at, None)
        if draw.outcome == "open":
            self.draws[draw.draw_id] = draw
            self.draw_rids[draw.rid] = draw.draw_id
        else:
            self.draws.pop(draw.draw_id, None)
            self.draw_rids.pop(draw.rid, None)
        self.next_draw = max(self.next_draw, draw.draw_id + 1)

    def drawable(self) -> list[GroupRow]:
        """Complete training groups, in the order they were leased."""
        return [self._complete[group_id] for group_id in self._complete_ids]

    def drawable_before(self, version: int) -> list[GroupRow]:
        """Those of them that an older policy version than this had a part in."""
        older = [ids for oldest, ids in self._complete_since.items() if oldest < version]
        return [self._complete[group_id] for group_id in sorted(set().union(*older))]

    def replayable(self) -> list[GroupRow]:
        """Groups that were trained on, but not `reuse` times yet."""
        return list(self._replayable.values())

    def forget_replay(self, row: GroupRow) -> None:
        """A trained group became too old to be drawn again."""
        self._replayable.pop(row.group_id, None)

    def unfinished(self, purpose: Purpose) -> list[GroupRow]:
        """Groups with unresolved slots, in the order they were leased."""
        return list(self._unfinished[purpose].values())  # each came when it was made

    def count_unfinished(self, purpose: Purpose) -> int:
        """How many there are."""
        return len(self._unfinished[purpose])

    def unheld(self, purpose: Purpose) -> list[GroupRow]:
        """Those of them that no actor holds."""
        return sorted(self._unheld[purpose].values(), key=lambda e: e.group_id)

    @property
    def in_flight(self) -> int:
        """Train groups leased, filling, complete or drawn and not committed."""
        states = ("leased", "filling", "complete", "drawn")
        return sum(self.counts[f"group/train/{state}"] for state in states)

    def _keep_complete(self, row: GroupRow, belongs: bool) -> None:
        group_id = row.group_id
        if belongs != (group_id in self._complete):
            ids, alike = self._complete_ids, self._complete_since.setdefault(row.oldest, set())
            if belongs:
                insort(ids, group_id)
                alike.add(group_id)
            else:
                del ids[bisect_left(ids, group_id)]
                alike.discard(group_id)
            if not alike:
                del self._complete_since[row.oldest]
        _keep(self._complete, row, belongs)

    def _load_replayable(self, txn: Txn, max_staleness: int) -> None:
        """Trained groups that may be drawn again: what the policy of version V − η or a newer
        one sampled was trained in a step that made a version after V − η."""
        for step in txn.steps_after(self.progress.version - max_staleness):
            for group_id in step.groups:
                row = txn.row(group_id)
                if row is not None:
                    self.put(row)

    @property
    def eval_done(self) -> Counter[str]:
        """Finished evaluation groups by tag."""
        return under(self.counts, "eval_done")


def _keep(groups: dict[str, GroupRow], row: GroupRow, belongs: bool) -> None:
    if belongs:
        groups[row.group_id] = row
    else:
        groups.pop(row.group_id, None)
