"""Builds and reads the messages between client and service.

    request  [header {v, op, rid, sum}]         [request]
    reply    [header {v, rid, ok: true, sum}]   [reply] [group] ...
             [header {v, rid, ok: false, error, message, facts, sum}]

`sum` is a checksum of the whole message. Damaged messages are dropped, and the client asks again.

Headers are plain maps. Requests and replies are the records that buffer.wire.operations lists for
the operation. A group is sent as an immutable record. The reply has the group's current state.
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

PROTOCOL = 12
DAMAGED = "damaged"
MESSAGE_LIMIT = codec.RECORD_LIMIT + (1 << 20)  # bytes; a larger frame ends the connection
REQUESTS_IN_FLIGHT = 256  # how many requests of a client may wait for a reply


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as the service sees it. `client`: the sender's routing id."""

    client: bytes
    operation: Operation
    rid: str
    arguments: Any
    nbytes: int = 0


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


def check_sum(header: dict[str, Any], frames: Sequence[Frame]) -> None:
    """Removes the checksum from a message's header. Raises RecordError if the checksum is wrong.
    Third-party clients may leave out the checksum."""
    if (found := header.pop("sum", None)) is not None and found != _sum(header, frames[1:]):
        raise RecordError("message: is damaged (wrong checksum)", cause=DAMAGED)


def _sum(header: dict[str, Any], frames: Sequence[Frame]) -> int:
    total = xxh3_64(codec.pack(header))
    for frame in frames:
        total.update(frame)
    return total.intdigest()


def _with_sum(header: dict[str, Any], *frames: bytes) -> list[bytes]:
    """Returns a message, with its checksum in the header."""
    return [codec.pack(header | {"sum": _sum(header, frames)}), *frames]


def read_request(client: bytes, header: dict[str, Any], frames: Sequence[Frame]) -> ReceivedRequest:
    """Reads a request: its header and the frames after it. Raises R3LError if it is malformed."""
    name = header.get("op")
    operation = OPERATIONS.get(name) if isinstance(name, str) else None
    if operation is None:
        raise UnknownOperation(
            f"operation {name!r:.40}: is unknown; must be one of {', '.join(OPERATIONS)}"
        )
    if len(frames) != 1:
        raise RecordError(f"{name}: has {len(frames)} frames after the header; must have one")
    arguments = codec.decode(operation.request, frames[0])
    return ReceivedRequest(client, operation, header["rid"], arguments, len(frames[0]))


def check_role(operation: Operation, role: str) -> None:
    """Raises NotAllowed if the role (buffer.wire.access) has no right to the operation."""
    if operation.learner and role != LEARNER:
        raise NotAllowed(
            f"{operation.name}: needs a learner's key; use the learner.json that r3l-buffer keygen "
            "wrote"
        )


def request_frames(name: str, rid: str, arguments: Record) -> list[bytes]:
    """Encodes a request. Raises LimitExceeded if the service would refuse it as too large."""
    header = {"v": PROTOCOL, "op": name, "rid": rid}
    try:
        return _with_sum(header, codec.encode(arguments))
    except RecordError as error:
        if error.cause != "too_large":
            raise
        raise LimitExceeded(f"{name}: {error}; send less in one request") from None


def reply_frames(rid: str, reply: Record, groups: Sequence[bytes] = ()) -> list[bytes]:
    """Encodes a reply. `groups`: the encoded groups that follow the reply."""
    header = {"v": PROTOCOL, "rid": rid, "ok": True}
    return _with_sum(header, codec.encode(reply), *groups)


def error_frames(rid: str, error: R3LError) -> list[bytes]:
    return _with_sum({"v": PROTOCOL, "rid": rid, "ok": False, **to_wire(error)})


def reply_id(frames: Sequence[Frame]) -> str:
    """Returns the id of the request that a reply answers; "" if the reply is damaged."""
    try:
        header = codec.unpack(frames[0])
        check_sum(header, frames)
        return str(header.get("rid", ""))
    except RecordError:
        return ""


def read_reply(name: str, frames: Sequence[Frame]) -> tuple[Any, Sequence[Frame]]:
    """Reads a reply and the encoded groups after it. Raises the error that a reply reports."""
    header = read_header(frames)
    if header.get("ok") is not True:
        raise from_wire(header)
    if len(frames) < 2:
        raise RecordError(f"{name}: the reply has no record")
    return codec.decode_one_of(OPERATIONS[name].replies, frames[1]), frames[2:]
