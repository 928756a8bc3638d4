"""Requests that were sent again because their answer was lost.

Most verbs know by what is in the store that they were carried out: a lease and a draw keep the
id of their request, a result its slot, a commit its step. The verbs here would do more, or count
otherwise, the second time: a learner that went back would go back again, from where it is by
now. Their last answers are kept in the store, by request id, and given again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.rows import Evicted
from buffer.wire.messages import Amount, Request
from r3l import codec
from r3l.records import Record

KEPT = 64  # answers; a client asks again within seconds
_ANSWERS: dict[str, type[Any]] = {
    "add_tasks": Amount,
    "release_draws": Amount,
    "set_version": Amount,
    "evict": Evicted,
}


class Answered(Record):
    """Answers by request id, encoded, the latest last."""

    answers: dict[str, bytes] = msgspec.field(default_factory=dict)


def once(work: UnitOfWork, request: Request, verb: Callable[[], Any]) -> Any:
    """What `verb` returns, which is done only if this request was not carried out before."""
    kind = _ANSWERS.get(request.op)
    if kind is None:
        return verb()
    data = work.txn.get("sys", b"answers")
    known = {} if data is None else codec.decode(Answered, data).answers
    if request.rid in known:
        return codec.decode(kind, known[request.rid])
    result = verb()
    latest = [*known.items(), (request.rid, codec.encode(result))][-KEPT:]
    work.txn.put("sys", b"answers", codec.encode(Answered(dict(latest))))
    return result
