"""The most instructive corrections of a run: attempts that a retry from the pivot did better."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from buffer.storage.store import Store
from buffer.tools import offline
from buffer.viewer.attempts import Texts, plain_group
from r3l.algorithms.algorithm import Algorithm
from r3l.errors import NotFound, RecordError

CANDIDATES = 2000  # groups with contrast that are looked into
ADVICE = 200  # characters of a reflection that is not JSON


@dataclass(frozen=True)
class Correction:
    """A retry that earned `gain` more than its base. `place`: its pivot as a share of the base's
    steps; the later it is, the more exactly the reflection found the error."""

    group_id: str
    task: str
    slot: int  # of the retry
    gain: float
    place: float
    rewards: tuple[float, float]  # of the base, of the retry
    pivot: int
    advice: str

    @property
    def result(self) -> str:
        """What the retry changed, in words."""
        before, after = self.rewards
        return f"reward {before:.2f} → {after:.2f} from step {self.pivot}"


def best(store: Store, rows: list[dict[str, Any]], count: int = 10) -> list[Correction]:
    """The corrections with the largest gain, then the latest pivot, at most one of each task;
    among the newest CANDIDATES groups of `rows` (oldest first). Damaged groups are left out."""
    with_contrast = [
        row for row in reversed(rows) if row["purpose"] == "train" and row["contrast"] > 0
    ]
    of_task: dict[str, Correction] = {}
    for row in with_contrast[:CANDIDATES]:
        for found in _corrections(store, row["group"]):
            known = of_task.get(found.task)
            if known is None or _rank(found) > _rank(known):
                of_task[found.task] = found
    return sorted(of_task.values(), key=_rank, reverse=True)[:count]


def shown(
    store: Store, found: Correction, algorithm: Algorithm | None, texts: Texts
) -> dict[str, Any]:
    """The group of a correction as the viewer shows it, with this correction alone."""
    group = plain_group(store, found.group_id, algorithm, texts)
    pairs = [p for p in group["pairs"] if p["retry"] and p["retry"]["slot"] == found.slot]
    return group | {"pairs": pairs}


def _rank(found: Correction) -> tuple[float, float, str]:
    return found.gain, found.place, found.group_id


def _corrections(store: Store, group_id: str) -> Iterator[Correction]:
    try:
        group = offline.group(store, group_id)
    except (RecordError, NotFound):  # damaged, or evicted since: `verify` names damage
        return
    bases = {one.slot: one for one in group.trajectories if one.role == "base"}
    for result in group.results:
        retry = result.trajectory
        if result.role != "distilled" or retry is None or retry.parent not in bases:
            continue
        base = bases[retry.parent]
        if retry.reward > base.reward:
            yield Correction(
                group_id=group_id,
                task=group.task.task_id,
                slot=result.slot,
                gain=retry.reward - base.reward,
                place=max(retry.pivot, 0) / base.num_steps,
                rewards=(base.reward, retry.reward),
                pivot=max(retry.pivot, 0),
                advice=_advice(result.reflection.text if result.reflection else ""),
            )


def _advice(text: str) -> str:
    """What a reflection suggests; of one that is not JSON, its beginning."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    suggestion = values.get("improvement_suggestion") if isinstance(values, dict) else None
    return suggestion if isinstance(suggestion, str) else text[:ADVICE]
