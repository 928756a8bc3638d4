"""Builds and reads the messages between client and service.

    request  [header {v, op, rid, sum}]         [request]
    inquiry  [header {v, op, rid, inquiry: true, sum}]
    reply    [header {v, rid, ok: true, sum}]   [reply] [group] ...
             [header {v, rid, ok: false, error, message, facts, sum}]
    sign     [header {v, rid, sign, sum}]       BUSY: the service is at work on the request, or full
                                                WANTED: it does not know the request

`sum` is a checksum of the whole message. Damaged messages are dropped, and the client asks again.

Headers are plain maps. Requests and replies are the records that buffer.wire.operations lists for
the operation. A group is sent as an immutable record. The reply has the group's current state.
Long answers come in parts, and large records in several frames (buffer.wire.parts).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_64

from buffer.wire.access import LEARNER
from buffer.wire.operations import OPERATIONS, Operation
from buffer.wire.sockets import Frame
from r3l import codec
from r3l.errors import (
    LimitExceeded,
    NotAllowed,
    R3LError,
    RecordError,
    SchemaVersionError,
    UnknownOperation,
    from_wire,
    to_wire,
)
from r3l.records import Record

PROTOCOL = 15
DAMAGED = "damaged"
BUSY, WANTED = "busy", "wanted"
MESSAGE_LIMIT = codec.RECORD_LIMIT + (1 << 20)  # bytes; a larger frame ends the connection
REQUESTS_IN_FLIGHT = 256  # how many requests of a client may wait for a reply


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as the service sees it. `client`: the sender's routing id. `sum`: the checksum of
    its message, None if it has none."""

    client: bytes
    operation: Operation
    rid: str
    arguments: Any
    nbytes: int = 0
    sum: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the request, even when it is sent again."""
        return self.operation.name, self.rid


def read_header(frames: Sequence[Frame]) -> dict[str, Any]:
    """Reads a message's header. Raises SchemaVersionError for another protocol version. Raises
    RecordError if the header is malformed."""
    if not frames:
        raise RecordError("message: is empty; it must begin with a header")
    header = codec.unpack(frames[0])
    version, rid = header.get("v"), header.get("rid")
    if version != PROTOCOL or type(version) is not int:
        raise SchemaVersionError(
            f"protocol {version!r:.40}: must be {PROTOCOL}; use the same r3l version on both sides"
        )
    if not isinstance(rid, str) or not 0 < len(rid) <= 64:
        raise RecordError("rid: must be a string of 1 to 64 characters", field="rid")
    return header


def check_sum(header: dict[str, Any], frames: Sequence[Frame]) -> int | None:
    """Removes the checksum from a message's header and returns it. Raises RecordError if it is
    wrong. Third-party clients may leave it out; it is None then."""
    found: int | None = header.pop("sum", None)
    if found is not None and found != _sum(header, frames[1:]):
        raise RecordError("message: is damaged (wrong checksum)", cause=DAMAGED)
    return found


def _sum(header: dict[str, Any], frames: Sequence[Frame]) -> int:
    total = xxh3_64(codec.pack(header))
    for frame in frames:
        total.update(frame)
    return total.intdigest()


def _with_sum(header: dict[str, Any], *frames: Frame) -> list[Frame]:
    """Returns a message, with its checksum in the header."""
    return [codec.pack(header | {"sum": _sum(header, frames)}), *frames]


def operation_of(header: dict[str, Any]) -> Operation:
    """Returns the operation that a header names. Raises UnknownOperation."""
    name = header.get("op")
    operation = OPERATIONS.get(name) if isinstance(name, str) else None
    if operation is None:
        raise UnknownOperation(
            f"operation {name!r:.40}: is unknown; must be one of {', '.join(OPERATIONS)}"
        )
    return operation


def is_inquiry(header: dict[str, Any], frames: Sequence[Frame]) -> bool:
    """Whether a message asks about a request that was sent."""
    return header.get("inquiry") is True and len(frames) == 1


def read_request(
    client: bytes, header: dict[str, Any], frames: Sequence[Frame], sum: int | None = None
) -> ReceivedRequest:
    """Reads a request: its header and the frames after it. Raises R3LError if it is malformed."""
    operation = operation_of(header)
    if len(frames) != 1:
        raise RecordError(
            f"{operation.name}: has {len(frames)} frames after the header; must have one"
        )
    arguments = codec.decode(operation.request, frames[0])
    return ReceivedRequest(client, operation, header["rid"], arguments, len(frames[0]), sum)


def check_role(operation: Operation, role: str) -> None:
    """Raises NotAllowed if the role (buffer.wire.access) has no right to the operation."""
    if operation.learner and role != LEARNER:
        raise NotAllowed(
            f"{operation.name}: needs a learner's key; use the learner.json that r3l-buffer keygen "
            "wrote"
        )


def request_frames(name: str, rid: str, arguments: Record) -> list[Frame]:
    """Encodes a request. Raises LimitExceeded if the service would refuse it as too large."""
    header = {"v": PROTOCOL, "op": name, "rid": rid}
    try:
        return _with_sum(header, codec.encode(arguments))
    except RecordError as error:
        if error.cause != "too_large":
            raise
        raise LimitExceeded(f"{name}: {error}; send less in one request") from None


def inquiry_frames(name: str, rid: str) -> list[Frame]:
    """Encodes an inquiry about a request that was sent."""
    return _with_sum({"v": PROTOCOL, "op": name, "rid": rid, "inquiry": True})


def sign_frames(rid: str, sign: str) -> list[Frame]:
    return _with_sum({"v": PROTOCOL, "rid": rid, "sign": sign})


def reply_frames(rid: str, reply: Record, following: Sequence[Frame] = ()) -> list[Frame]:
    """Encodes a reply. `following`: the encoded groups or results that follow it."""
    header = {"v": PROTOCOL, "rid": rid, "ok": True}
    return _with_sum(header, codec.encode(reply), *following)


def error_frames(rid: str, error: R3LError) -> list[Frame]:
    return _with_sum({"v": PROTOCOL, "rid": rid, "ok": False, **to_wire(error)})


def address(frames: Sequence[Frame]) -> tuple[str, str]:
    """Reads a reply or a sign. Returns the id of the request that it is about, and the sign, which
    is "" for a reply. Both are "" if the message is damaged."""
    try:
        header = codec.unpack(frames[0])
        check_sum(header, frames)
        return str(header.get("rid", "")), str(header.get("sign", ""))
    except RecordError:
        return "", ""


def read_reply(name: str, frames: Sequence[Frame]) -> tuple[Any, Sequence[Frame]]:
    """Reads a reply and the frames after it. Raises the error that a reply reports."""
    header = read_header(frames)
    if header.get("ok") is not True:
        raise from_wire(header)
    if len(frames) < 2:
        raise RecordError(f"{name}: the reply has no record")
    return codec.decode_one_of(OPERATIONS[name].replies, frames[1]), frames[2:]
