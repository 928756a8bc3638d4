"""The most instructive corrections of a run's store (r3l.views.attempt_view.Correction)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.viewer.attempts import Texts, plain_group
from r3l.errors import NotFound, RecordError, StoreError
from r3l.records import Group
from r3l.views.attempt_view import Correction, best_corrections

CANDIDATES = 2000  # groups with contrast that are looked into
ADVICE = 200  # characters of a reflection's advice


def best(store: Store, rows: Sequence[dict[str, Any]], count: int = 10) -> list[Correction]:
    """The best corrections among the newest CANDIDATES groups of `rows` (oldest first). Damaged
    groups are left out."""
    with_contrast = [
        row["group"] for row in reversed(rows) if row["purpose"] == "train" and row["contrast"] > 0
    ]
    return best_corrections(_sound(store, with_contrast[:CANDIDATES]), count)


def shown(store: Store, found: Correction, texts: Texts) -> dict[str, Any]:
    """The group of a correction as the viewer shows it, with this correction alone."""
    group = plain_group(store, found.group_id, texts)
    pairs = [p for p in group["pairs"] if p["retry"] and p["retry"]["slot"] == found.retry.slot]
    return group | {"pairs": pairs}


def line(found: Correction) -> dict[str, str]:
    """A correction in the report's table."""
    advice = found.retry.reflection.advice[:ADVICE] if found.retry.reflection else ""
    return {
        "group": found.group_id,
        "task": found.task_id,
        "result": found.result,
        "advice": advice,
    }


def _sound(store: Store, names: Sequence[str]) -> Iterator[Group]:
    for name in names:
        try:
            yield store_reads.group(store, name)
        except (
            RecordError,
            NotFound,
            StoreError,
        ):  # damaged, or evicted since: `verify` names damage
            continue
