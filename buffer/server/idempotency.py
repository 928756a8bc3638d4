"""Carries out a request once, even if its client sends it again.

Most operations can tell from the store that they were already carried out. For the others
(`keeps_reply` in buffer.wire.operations), the reply is kept under the request's id.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from buffer.groups.unit_of_work import UnitOfWork
from buffer.wire.messages import ReceivedRequest
from r3l import codec
from r3l.records import Record

KEPT = 64  # replies; a client asks again within seconds


class KeptReplies(Record):
    """Encoded replies, keyed by request id, in the order of the requests."""

    replies: dict[str, bytes] = msgspec.field(default_factory=dict)


def once(work: UnitOfWork, request: ReceivedRequest, carry_out: Callable[[], Any]) -> Any:
    """Returns the kept reply to this request, or calls `carry_out` if there is none."""
    if not request.operation.keeps_reply:
        return carry_out()
    data = work.txn.get("sys", b"replies")
    known = {} if data is None else codec.decode(KeptReplies, data).replies
    if request.rid in known:
        return codec.decode_one_of(request.operation.replies, known[request.rid])
    reply = carry_out()
    latest = [*known.items(), (request.rid, codec.encode(reply))][-KEPT:]
    work.txn.put("sys", b"replies", codec.encode(KeptReplies(dict(latest))))
    return reply
