"""The attempts of a store as a pandas DataFrame, with a row for each resolved slot.

Columns of the group: `expired` says why the group expired, `uses` counts the optimizer steps that
trained on the group, `step` is the last of these steps, and `leased_at` and so on are Unix times.
Columns of the attempt are fields of r3l.views.attempt_view.AttemptView. For a retry, `of` and
`base` are the slot of the attempt that it retries. For another attempt, `base` is its own slot.
`steps` counts turns, and `tokens` counts sampled tokens. `staleness` is step - 1 - oldest_version:
how many versions the policy was behind. It is missing for imported attempts.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from buffer.storage import result_checksums
from buffer.storage.store import Store
from buffer.storage.stored_rows import GroupRow
from r3l.errors import UserError, install
from r3l.records import Group, GroupState, Purpose
from r3l.views.attempt_view import view

TIMES = ("leased", "complete", "drawn", "trained", "expired")
COLUMNS: dict[str, str] = (
    dict.fromkeys("group_id task_id env purpose tag state expired actor role".split(), "str")
    | {"slot": "Int64", "status": "str", "cause": "str", "finish": "str"}
    | {"base": "Int64", "of": "Int64", "pivot": "Int64", "reward": "float64", "seconds": "float64"}
    | dict.fromkeys("steps tokens length oldest_version newest_version".split(), "Int64")
    | dict.fromkeys("step uses staleness".split(), "Int64")
    | {f"{state}_at": "float64" for state in TIMES}
)
"""Name and pandas type of every column."""


def frame(
    store: Store,
    purpose: Purpose | None = None,
    tag: str | None = None,
    state: GroupState | None = None,
    limit: int | None = None,
) -> Any:
    """Returns the attempts of the newest `limit` groups, in creation order. An argument of None
    restricts nothing. Missing numbers are NA or NaN.

    Raises UserError if pandas is not installed, RecordError if a group is damaged.
    """
    try:
        import pandas
    except ImportError:
        raise UserError(f"a frame needs pandas; {install('frame')}") from None
    with store.read() as txn:
        newest = list(islice(txn.listed(purpose, tag, state), limit))
        newest.sort(key=lambda row: row.group_id)
        rows = [line for row in newest for line in _rows(result_checksums.read(txn, row), row)]
    return pandas.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _rows(group: Group, row: GroupRow) -> Iterator[dict[str, Any]]:
    """Yields one row of the frame for each result of a group, in the order of the slots."""
    shared = {name: getattr(row, name) for name in COLUMNS if name in row.__struct_fields__}
    shared |= {"env": group.task.env, "expired": row.cause, "uses": len(row.steps)}
    shared |= {f"{state}_at": row.times.get(state) for state in TIMES}
    step = row.steps[-1] if row.steps else None
    for result in sorted(group.results, key=lambda r: r.slot):
        shown = view(result)
        own = {name: getattr(shown, name) for name in COLUMNS if name in shown.__struct_fields__}
        own |= {"steps": len(shown.steps) or None, "tokens": shown.generated, "step": step}
        own |= {name: own[name] if own[name] >= 0 else None for name in ("of", "pivot")}
        oldest = shown.oldest_version
        if step is not None and oldest is not None and oldest >= 0:
            own["staleness"] = step - 1 - oldest
        yield shared | own
