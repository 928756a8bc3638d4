"""Attempts as a pandas DataFrame or a pyarrow Table, with one row for each resolved slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Literal, get_args, get_type_hints

from r3l.errors import UserError
from r3l.records import Group, Record, SlotResult
from r3l.views.attempt_view import view

Kind = Literal["pandas", "arrow"]
LIBRARIES = {"pandas": ("pandas", "frame"), "arrow": ("pyarrow", "arrow")}  # module, extra


class AttemptRow(Record):
    """One slot of a group as a row; the fields are the columns, in this order.

    Group columns: `state`, `expired` (why, or ""), and the wall-clock second when it entered each
    state. Slot columns: `status`, and `cause` if it failed. If a slot has no attempt, the attempt's
    columns are None. `steps`: the K turns of the policy; `tokens`: how many were sampled for it;
    `length`: all tokens of its sequence; `seconds`: time spent sampling its own steps. `uses`: how
    many optimizer steps trained on it; `step`: the last of them; `staleness`: versions between its
    oldest token and that step.
    """

    group_id: str
    task_id: str
    env: str
    purpose: str
    tag: str
    state: str
    expired: str
    actor: str
    role: str
    slot: int
    status: str
    cause: str
    finish: str
    parent: int | None
    pivot: int | None
    reward: float | None
    steps: int | None
    tokens: int | None
    length: int | None
    seconds: float | None
    oldest_version: int | None
    newest_version: int | None
    step: int | None
    uses: int
    staleness: int | None
    leased_at: float | None
    complete_at: float | None
    drawn_at: float | None
    trained_at: float | None
    expired_at: float | None


def rows(group: Group, trained: Sequence[int]) -> Iterator[AttemptRow]:
    """Yields the rows of a group, base slots first; `trained`: the optimizer steps that trained on
    it."""
    for result in sorted(group.results, key=lambda r: (r.role, r.slot)):
        yield AttemptRow(
            group_id=group.group_id,
            task_id=group.task.task_id,
            env=group.task.env,
            purpose=group.purpose,
            tag=group.tag,
            state=group.state,
            expired=group.cause,
            actor=group.actor,
            role=result.role,
            slot=result.slot,
            status=result.status,
            cause=result.cause,
            **_of_attempt(result, trained),
            step=trained[-1] if trained else None,
            uses=len(trained),
            leased_at=group.times.get("leased"),
            complete_at=group.times.get("complete"),
            drawn_at=group.times.get("drawn"),
            trained_at=group.times.get("trained"),
            expired_at=group.times.get("expired"),
        )


def _of_attempt(result: SlotResult, trained: Sequence[int]) -> dict[str, Any]:
    """Returns the columns that only slots with an attempt have."""
    names = ("reward", "length", "seconds", "oldest_version", "newest_version")
    shown = view(result)
    columns = {"finish": shown.finish} | {name: getattr(shown, name) for name in names}
    if shown.reward is None or shown.oldest_version is None:
        return columns | dict.fromkeys(("parent", "pivot", "steps", "tokens", "staleness"))
    return columns | {
        "parent": shown.base if shown.role == "distilled" else -1,
        "pivot": shown.pivot,
        "steps": len(shown.steps),
        "tokens": shown.generated,
        "staleness": trained[-1] - 1 - shown.oldest_version if trained else None,
    }


def library(kind: str) -> Any:
    """Imports the library that makes this kind of table. Raises UserError if the kind is unknown or
    the library is not installed."""
    if kind not in LIBRARIES:
        raise UserError(f"kind {kind!r:.40}: must be one of {', '.join(LIBRARIES)}")
    module, extra = LIBRARIES[kind]
    try:
        return import_module(module)
    except ImportError:
        raise UserError(f"a frame needs the package {module}; pip install 'r3l[{extra}]'") from None


def made(kind: str, attempts: Iterable[AttemptRow]) -> Any:
    """Makes a pandas DataFrame or a pyarrow Table of rows; an empty one has the same columns and
    types. None becomes NaN, or NA in pandas' columns of integers."""
    used, all_rows = library(kind), list(attempts)
    columns = {
        name: ((*get_args(hint), hint)[0], [getattr(row, name) for row in all_rows])
        for name, hint in get_type_hints(AttemptRow).items()
    }
    if kind == "arrow":
        types = {str: used.string(), int: used.int64(), float: used.float64()}
        return used.table({n: used.array(v, types[hint]) for n, (hint, v) in columns.items()})
    types = {str: "str", int: "Int64", float: "float64"}
    return used.DataFrame(
        {n: used.Series(v, dtype=types[hint]) for n, (hint, v) in columns.items()}
    )
