"""An index of the store, in memory. Only the writer thread changes the index. After a failed
transaction, the service loads the index again."""

from collections import Counter
from typing import Self

from buffer.storage.counts import under
from buffer.storage.layout import INSERTED
from buffer.storage.store import Store
from buffer.storage.stored_rows import DrawRow, GroupRow, RunPosition
from r3l.records import Purpose
from r3l.run.settings.buffer import BufferConfig


class Index:
    """Keeps state in memory, so that operations need not read the store.

    `live`: groups that are not closed, by id. `draws`: open draws, by id. `lease_rids`: leased
    groups, by request id. `draw_rids`: open draws, by request id. `returned`: the last draw that
    was released, expired or rewound since the index was loaded, by consumer and version.
    `last_seen`: wall-clock second of the last request about draws, by consumer. `tasks`: number of
    tasks, by purpose and tag. `counts`: see buffer.storage.counts. `admitted`: groups that the
    algorithm admitted since the index was loaded, as long as they may be drawn. `sampler_restored`:
    whether the sampler has the state that the store has.
    """

    def __init__(self, config: BufferConfig) -> None:
        self.config, self.sampler = config, config.sampler
        self.live: dict[str, GroupRow] = {}
        self.lease_rids: dict[str, str] = {}
        self.draws: dict[int, DrawRow] = {}
        self.draw_rids: dict[str, int] = {}
        self.returned: dict[tuple[str, int], DrawRow] = {}
        self.last_seen: dict[str, float] = {}
        self.tasks: Counter[tuple[Purpose, str]] = Counter()
        self.counts: Counter[str] = Counter()
        self.admitted: set[str] = set()
        self.progress = RunPosition()
        self.sampler_restored = False
        self.next_group = 1
        self.next_draw = 1
        self._unfinished: dict[Purpose, dict[str, GroupRow]] = {"train": {}, "eval": {}}
        self._unheld: dict[Purpose, dict[str, GroupRow]] = {"train": {}, "eval": {}}
        self._complete: dict[str, GroupRow] = {}
        self._replayable: dict[str, GroupRow] = {}

    @classmethod
    def load(cls, store: Store, config: BufferConfig) -> Self:
        index = cls(config)
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
            index.next_group = int(txn.last_group()[1:] or 0) + 1
            newest = next(txn.keys("draw", backwards=True), b"")
            index.next_draw = int.from_bytes(newest, "big") + 1
            for row in txn.listed("train", INSERTED, "trained"):
                index.put(row)
            if config.sampler.reuse > 1:
                # Groups of steps that made earlier versions are too old to be drawn again.
                for step in txn.steps_after(index.progress.version - config.replay_limit):
                    for row in filter(None, map(txn.row, step.groups)):
                        index.put(row)
        return index

    def put(self, row: GroupRow) -> None:
        before = self.live.get(row.group_id)
        if before is not None:
            self.lease_rids.pop(before.rid, None)
        if row.unfinished and row.rid:
            self.lease_rids[row.rid] = row.group_id
        complete = row.state == "complete" and row.purpose == "train"
        replayable = row.state == "trained" and len(row.steps) < self.sampler.reuse
        _keep(self.live, row, not row.closed)
        _keep(self._unfinished[row.purpose], row, row.unfinished)
        _keep(self._unheld[row.purpose], row, row.unfinished and not row.has_holder)
        _keep(self._complete, row, complete)
        _keep(self._replayable, row, replayable)
        if row.closed and not replayable:
            self.admitted.discard(row.group_id)
        self.next_group = max(self.next_group, int(row.group_id[1:]) + 1)

    def put_draw(self, draw: DrawRow) -> None:
        """Adds a draw, or replaces it after its outcome changed."""
        at = draw.consumer, draw.version
        if draw.outcome in ("released", "expired", "rewound"):
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
        """Returns the complete training groups, in lease order."""
        return sorted(self._complete.values(), key=lambda row: row.group_id)

    def replayable(self) -> list[GroupRow]:
        """Returns the trained and inserted groups that may be drawn, now or after a cooldown."""
        return list(self._replayable.values())

    def replays(self) -> list[GroupRow]:
        """Returns the trained and inserted groups that may be drawn now."""
        since = self.progress.version - self.sampler.cooldown
        rows = self._replayable.values()
        return [row for row in rows if not row.steps or row.steps[-1] <= since]

    def replayed_in(self, count: int) -> int | None:
        """Returns how many trained groups are drawn again in a batch of `count` groups, or None if
        the sampler decides."""
        share = self.sampler.replay_share
        if self.sampler.replay_no_contrast:
            return min(len(self.progress.replaced), count, len(self.replays()))
        return None if share is None else min(round(share * count), len(self.replays()))

    def ready(self, count: int) -> int:
        """Returns how many groups are available for a batch of `count`."""
        again = self.replayed_in(count)
        return len(self._complete) + (len(self.replays()) if again is None else again)

    def forget_replay(self, row: GroupRow) -> None:
        """Removes a trained group from the groups that may be drawn again."""
        self._replayable.pop(row.group_id, None)
        self.admitted.discard(row.group_id)

    def unfinished(self, purpose: Purpose) -> list[GroupRow]:
        """Returns the groups with open slots, in lease order."""
        return list(self._unfinished[purpose].values())  # inserted when they were made

    def unheld(self, purpose: Purpose) -> list[GroupRow]:
        """Returns the groups that have open slots but no holder, in lease order."""
        return sorted(self._unheld[purpose].values(), key=lambda row: row.group_id)

    @property
    def in_flight(self) -> int:
        """Number of training groups in the states leased, filling, complete and drawn."""
        states = ("leased", "filling", "complete", "drawn")
        return sum(self.counts[f"group/train/{state}"] for state in states)

    @property
    def eval_done(self) -> Counter[str]:
        """Number of finished evaluation groups, keyed by tag."""
        return under(self.counts, "eval_done")


def _keep(groups: dict[str, GroupRow], row: GroupRow, belongs: bool) -> None:
    if belongs:
        groups[row.group_id] = row
    else:
        groups.pop(row.group_id, None)
