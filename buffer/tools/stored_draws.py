"""Draws from finished stores, without a service: what offline training learns from.

    stores ─► candidates ─► sampler (buffer.sampling.samplers) ─► Draw, with recalled attempts
                 ▲                                                  │
                 └──── uses, from the ledger of the run ◄───────────┘

A candidate is a training group with a trajectory that is complete, drawn or trained, or expired as
stale or without contrast. `buffer.sampler` decides how often it may be drawn (`reuse`, `cooldown`)
and when. Stores do not change, so the same seed and ledger give the same draws.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from buffer.client.calls import Draw
from buffer.sampling import samplers, task_history
from buffer.storage.rows import GroupRow
from buffer.storage.store import Store
from r3l import codec
from r3l.algorithms.recall import GroupContext, StoredAttempt
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.records import Group, Recalled

USABLE = ("complete", "drawn", "trained", "expired")


class StoredDraws:
    """The draws of one offline run, counted from 1; `ledger` is its file, one line a draw.

    With several stores a group is called by the number of its store and its id, such as
    `1/g0000000017`.
    """

    def __init__(self, folders: Sequence[Path], config: RunConfig, ledger: Path) -> None:
        self.config, self.ledger = config, ledger
        self.stores = list[Store]()
        self.rows: dict[str, GroupRow] = {}
        self.places: dict[str, tuple[Store, str]] = {}
        self.uses: dict[str, list[int]] = {}
        self.skipped = set[str]()
        self.count = 0
        self._again = config.algorithm.build().replay_rule is not None
        sampler = config.buffer.sampler
        if sampler.replay_share is not None or sampler.replay_no_contrast:
            raise UserError(
                "buffer.sampler: replay_share and replay_no_contrast mix stored groups with new "
                "ones, and offline there are no new ones; leave them out and set reuse"
            )
        if len({folder.resolve() for folder in folders}) < len(folders):
            raise UserError("--offline names a store twice; name each once")
        try:
            for number, folder in enumerate(folders):
                self.stores.append(Store(folder, read_only=True))
                self._add(folder, self.stores[-1], f"{number}/" if len(folders) > 1 else "")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the stores."""
        for store in self.stores:
            store.close()

    def some(self, count: int) -> list[Group]:
        """The first `count` candidates of each store."""
        names = [
            [name for name, (store, _) in self.places.items() if store is one][:count]
            for one in self.stores
        ]
        return [self._group(name) for of_store in names for name in of_store]

    def resume(self, version: int) -> None:
        """Take up the draws of an earlier learner up to `version`; later ones leave the ledger."""
        lines = self._lines() if self.ledger.exists() else []
        kept = [line for line in lines if line["version"] < version]
        for line in kept:
            self._count(line["draw"], line["groups"], trained=line["trained"])
        text = "".join(json.dumps(line) + "\n" for line in kept)
        self.ledger.write_text(text, encoding="utf-8")

    def draw(self, version: int) -> Draw | None:
        """The next batch; None if the stores have too few groups left."""
        sampler, size = self.config.buffer.sampler, self.config.learner.groups_per_step
        number = self.count + 1
        ready = [row for row in self.rows.values() if self._drawable(row.group_id, number)]
        if len(ready) < size:
            return None
        ready = [row.with_changes(steps=tuple(self.uses.get(row.group_id, ()))) for row in ready]
        source = samplers.random_source(self.config.seed, number)
        picks = samplers.make(sampler).pick(ready, size, source)
        picks = sorted(picks, key=lambda pick: pick.row.group_id)
        groups = [self._group(pick.row.group_id) for pick in picks]
        recalled = list(self._recalled([p.row for p in picks], self.config, version, number))
        again = [p.row.group_id for p in picks if self._again and self.uses.get(p.row.group_id)]
        return Draw(
            number,
            groups,
            version,
            tuple(pick.probability for pick in picks),
            tuple(pick.weight for pick in picks),
            [codec.encode(one) for one in (*groups, *recalled)],
            recalled=recalled,
            replayed=tuple(again),
        )

    def keep(self, draw: Draw, *, trained: bool) -> None:
        """Enter a draw into the ledger; the groups of one that was not trained on are not drawn
        again."""
        groups = [group.group_id for group in draw.groups]
        line = {
            "draw": draw.draw_id,
            "version": draw.version,
            "trained": trained,
            "groups": groups,
            "recalled": [
                [one.into, one.group_id, one.trajectory.role, one.trajectory.slot]
                for one in draw.recalled
            ],
        }
        with self.ledger.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._count(draw.draw_id, groups, trained=trained)

    def _add(self, folder: Path, store: Store, prefix: str) -> None:
        """The candidates of a store."""
        contrast, found = self.config.algorithm.needs_contrast, 0
        with store.read() as txn:
            for row in txn.rows():
                usable = row.purpose == "train" and row.state in USABLE and row.done
                if not usable or row.cause not in task_history.USABLE:
                    continue
                if (contrast and not row.contrast) or not txn.record_is_sound(row):
                    continue
                name, found = prefix + row.group_id, found + 1
                self.rows[name] = row.with_changes(group_id=name)
                self.places[name] = store, row.group_id
        if not found:
            raise UserError(
                f"store {folder}: holds no finished training group"
                f"{' whose rewards differ' if contrast else ''}; give the store of a run"
            )

    def _drawable(self, name: str, number: int) -> bool:
        sampler, uses = self.config.buffer.sampler, self.uses.get(name, [])
        rested = not uses or uses[-1] < number - sampler.cooldown
        return name not in self.skipped and len(uses) < sampler.reuse and rested

    def _count(self, number: int, groups: Sequence[str], *, trained: bool) -> None:
        self.count = number
        for name in groups:
            self.uses.setdefault(name, []).append(number)
        if not trained:
            self.skipped.update(groups)

    def _group(self, name: str) -> Group:
        store, group_id = self.places[name]
        with store.read() as txn:
            return replace(codec.decode(Group, txn.record(group_id)), group_id=name)

    def _recalled(
        self, rows: list[GroupRow], config: RunConfig, version: int, number: int
    ) -> Iterator[Recalled]:
        """The attempts that an algorithm's rule recalls from the other groups of the tasks."""
        rule, epoch = config.algorithm.recall, self._epoch
        for place, row in enumerate(rows) if rule else ():
            assert rule is not None
            context = GroupContext(row.rewards, self._history(row), version, epoch)
            for one in rule(context, samplers.random_source(config.seed, number, place)):
                store, group_id = self.places[one.group_id]
                with store.read() as txn:
                    read = task_history.read(txn, row.group_id, group_id, one.role, one.slot)
                if read is not None:
                    yield replace(read, group_id=one.group_id)

    def _history(self, row: GroupRow) -> Iterator[StoredAttempt]:
        """The attempts of a task's other candidates, store by store, the newest group first."""
        names = {place: name for name, place in self.places.items()}
        for store in self.stores:
            with store.read() as txn:
                found = list(task_history.attempts(txn, row.task_id, waiting=True))
            for one in found:
                name = names.get((store, one.group_id), row.group_id)
                if name != row.group_id:
                    yield StoredAttempt(name, one.role, one.slot, one.reward, one.version)

    @property
    def _epoch(self) -> int:
        """Times that as many groups were drawn as there are."""
        return self.count * self.config.learner.groups_per_step // len(self.rows)

    def _lines(self) -> list[dict[str, Any]]:
        """The whole lines of the ledger; a killed learner may have left half a line."""
        whole, _, _ = self.ledger.read_text(encoding="utf-8").rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]
