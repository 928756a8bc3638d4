"""An index of the store, in memory. Only the writer thread changes the index. After a failed
transaction, the service loads the index again."""

from collections import Counter
from typing import Self

from buffer.indexes.drawable_groups import DrawableGroups
from buffer.indexes.unfinished_groups import UnfinishedGroups
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
    tasks, by purpose and tag. `counts`: see buffer.storage.counts. `sampler_restored`: whether the
    sampler has the state in the store. `unfinished`: groups with open slots, by purpose.
    `drawable`: groups that may be drawn, including those in their cooldown.
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
        self.progress = RunPosition()
        self.sampler_restored = False
        self.next_group = 1
        self.next_draw = 1
        self.unfinished: dict[Purpose, UnfinishedGroups] = {
            "train": UnfinishedGroups(),
            "eval": UnfinishedGroups(),
        }
        self._drawable = DrawableGroups()

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
            index.tasks = txn.task_counts()
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
        _keep(self.live, row, not row.closed)
        self.unfinished[row.purpose].put(row)
        again = row.state == "trained" and len(row.steps) < self.sampler.reuse
        self._drawable.put(row, replayable=again)
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

    @property
    def drawable(self) -> DrawableGroups:
        """The groups that may be drawn at the learner's current version."""
        self._drawable.rest_until(self.progress.version - self.sampler.cooldown)
        return self._drawable

    def replayed_in(self, count: int) -> int | None:
        """Returns how many trained groups are drawn again in a batch of `count` groups, or None if
        the sampler decides."""
        share = self.sampler.replay_share
        if self.sampler.replay_no_contrast:
            return min(len(self.progress.replaced), count, len(self.drawable.rested))
        return None if share is None else min(round(share * count), len(self.drawable.rested))

    def ready(self, count: int) -> int:
        """Returns how many groups are available for a batch of `count`."""
        again = self.replayed_in(count)
        found = self.drawable
        return len(found.ready) if again is None else len(found.fresh) + again

    def forget_replay(self, row: GroupRow) -> None:
        """Removes a trained group from the groups that may be drawn again."""
        self._drawable.forget(row.group_id)

    def admits(self, group_id: str) -> bool:
        """Whether the algorithm has admitted a group since the index was loaded."""
        return group_id in self._drawable.admitted

    def admit(self, group_id: str) -> None:
        """Notes that the algorithm admits a group."""
        self._drawable.admit(group_id)

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
