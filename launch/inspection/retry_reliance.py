"""Reads from a run's ledger how much each trained retry relied on its guidance."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from buffer.storage.store import Store
from buffer.storage.store_path import has_store
from buffer.storage.stored_rows import TrainedAttempt
from r3l.errors import R3LError

STEPS = 20
"""How many of the newest optimizer steps are read."""
FEWEST = 10
"""The lowest tenth is reported only if there are at least this many retries."""


def reliance_of_retries(store: Path) -> str:
    """Returns a sentence about the reliance (r3l.algorithms.shared.reliance) of the retries that
    the newest STEPS steps trained on. It names the retry that relied most on its guidance. Returns
    "" if there is no such retry, or if the store cannot be read (`doctor` reports that
    elsewhere)."""
    if not has_store(store):
        return ""
    try:
        with Store(store, read_only=True) as opened, opened.read() as txn:
            attempts = [one for row in islice(txn.steps(backwards=True), STEPS)
                        for one in row.attempts]  # fmt: skip
    except R3LError:
        return ""
    return _said(list(_known(attempts)))


def _known(attempts: Sequence[TrainedAttempt]) -> Iterator[tuple[float, TrainedAttempt]]:
    return ((one.reliance, one) for one in attempts if one.reliance is not None)


def _said(known: Sequence[tuple[float, TrainedAttempt]]) -> str:
    if not known:
        return ""
    values = sorted(value for value, _ in known)
    lowest, most = min(known, key=lambda pair: pair[0])
    tenth = ""
    if len(values) >= FEWEST:
        tenth = f", a tenth below {values[len(values) // 10]:+.2f}"
    return (
        f"reliance of the {len(values)} retries that were trained last: median "
        f"{median(values):+.2f} nats a token{tenth}, the lowest {lowest:+.2f}: group "
        f"{most.group_id} slot {most.slot}"
    )
