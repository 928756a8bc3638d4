"""Records as bytes, on the wire and on disk: msgpack with the schema version in front.

    [schema, kind, {field: value, ...}]

A record is written and read by its dataclass's annotations, so every value is checked against
its type on the way in and on the way out. Arrays stand together behind the other fields (r3l.plain)
and come back read-only. Nothing is ever unpickled.

A field that is missing takes its default (written by an older schema); an unknown field, a
duplicate key or a value of another type is a RecordError; a newer schema a SchemaVersionError.
Schema 1 differs only in its arrays, each of which stands by itself.

Records are read quickly where they are as today's code writes them (r3l.quick), and carefully
otherwise (r3l.plain).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from r3l import plain, quick
from r3l.errors import RecordError, SchemaVersionError
from r3l.plain import NESTING_LIMIT, RECORD_LIMIT
from r3l.records import Group, SlotResult

__all__ = ["NESTING_LIMIT", "RECORD_LIMIT"]

SCHEMA = 2
HEADER_LIMIT = 64 << 10  # bytes of a message header

T = TypeVar("T")
_Bytes = TypeVar("_Bytes", bytes, bytes | memoryview)


def encode(record: Any) -> bytes:
    """One record as bytes. Raises RecordError for a value that is not of its field's type."""
    return check_size(_prefix(type(record).__name__) + plain.pack(to_plain(record)))


def encode_unchecked(record: Any) -> bytes:
    """`encode` for what is checked when it is read, or made by code that checks: three times
    as quick, because no value's type is looked at."""
    try:
        return check_size(_prefix(type(record).__name__) + quick.write(record))
    except quick.Unusual:
        return encode(record)


def encode_together(records: Iterable[Any]) -> tuple[bytes, tuple[int, ...]]:
    """Records back to back, as `encode_unchecked` writes them, and the size of each."""
    pieces: list[bytes] = []
    sizes: list[int] = []
    for record in records:
        try:
            start, body = _prefix(type(record).__name__), quick.write(record)
        except quick.Unusual:
            start, body = encode(record), b""
        pieces += (start, body)
        sizes.append(len(start) + len(body))
    if max(sizes, default=0) > RECORD_LIMIT:
        raise RecordError(f"{max(sizes)} bytes; the limit is {RECORD_LIMIT}", cause="too_large")
    return b"".join(pieces), tuple(sizes)


def decode(kind: type[T], data: bytes | memoryview) -> T:
    """The record of class `kind` held by `data`; checks version, kind, types and limits."""
    try:
        record: T = quick.reader(kind).read(body(kind, data))
        return record
    except quick.Unusual:
        return _decode_carefully(kind, data)


def body(kind: type[Any], data: bytes | memoryview) -> memoryview:
    """The fields of a record, still encoded; Unusual for what has no plain prefix."""
    if start := _prefix_size(kind.__name__, check_size(data)):
        return memoryview(data)[start:]
    raise quick.Unusual


def _decode_carefully(kind: type[T], data: bytes | memoryview) -> T:
    outer = plain.unpack(check_size(data))
    if not isinstance(outer, list) or len(outer) != 3:
        raise RecordError("not a record: a list of schema, kind and fields is expected")
    schema, name, values = outer
    if type(schema) is not int or schema < 1:
        raise RecordError(f"schema {schema!r} is not a version number", field="schema")
    if schema > SCHEMA:
        raise SchemaVersionError(
            f"record of schema {schema}; this r3l reads up to {SCHEMA}", schema=schema
        )
    if name != kind.__name__:
        raise RecordError(f"record is a {name!r:.80}, not a {kind.__name__}", field="kind")
    return from_plain(kind, values)


def encode_group(head: Group, results: Sequence[bytes | memoryview]) -> bytes:
    """A group without results, encoded with these ones, which are not decoded for it."""
    bodies = [result_body(result) for result in results]
    start = _prefix(Group.__name__) + quick.write_open(head, "results", len(bodies))
    return check_size(b"".join([start, *bodies]))


def result_body(result: bytes | memoryview) -> bytes | memoryview:
    """An encoded slot result as it lies in a group that `encode_group` made."""
    start = _prefix_size(SlotResult.__name__, result)
    return result[start:] if start else _rewritten(result)


def pack(mapping: Mapping[str, Any], limit: int = HEADER_LIMIT) -> bytes:
    """A message header of plain values, at most `limit` bytes."""
    return check_size(plain.pack(mapping), limit)


def unpack(data: bytes | memoryview, limit: int = HEADER_LIMIT) -> dict[str, Any]:
    """The mapping `pack` wrote. Raises RecordError for anything else."""
    mapping = plain.unpack(check_size(data, limit))
    if not isinstance(mapping, dict):
        raise RecordError(f"header is a {type(mapping).__name__}; a map is expected")
    return mapping


def to_plain(record: Any) -> dict[str, Any]:
    """A dataclass as plain msgpack values, checked against its annotations."""
    kind: Any = type(record)
    values: dict[str, Any] = plain.rules(kind)[0](record, kind.__name__)
    return values


def from_plain(kind: type[T], values: Any) -> T:
    """A dataclass from plain msgpack values, checked against its annotations."""
    hint: Any = kind
    record: T = plain.rules(hint)[1](values, kind.__name__)
    return record


def check_size(data: _Bytes, limit: int = RECORD_LIMIT) -> _Bytes:
    """`data`, if it is no longer than that."""
    if len(data) > limit:
        raise RecordError(f"{len(data)} bytes; the limit is {limit}", cause="too_large")
    return data


def _prefix(name: str) -> bytes:
    return _prefixes(name)[-1]


@cache
def _prefixes(name: str) -> tuple[bytes, ...]:
    """What a record of this kind begins with, by schema."""
    return tuple(b"\x93" + plain.pack(s) + plain.pack(name) for s in range(1, SCHEMA + 1))


def _prefix_size(name: str, data: bytes | memoryview) -> int:
    """Bytes before a record's fields; 0 for what does not begin as this code writes it."""
    known = _prefixes(name)
    size = len(known[0])
    return size if bytes(data[:size]) in known else 0


def _rewritten(result: bytes | memoryview) -> memoryview:
    """The body of a slot result that another codec wrote."""
    return body(SlotResult, encode(decode(SlotResult, result)))
