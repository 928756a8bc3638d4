"""The byte form of records, on the wire and on disk: msgpack, schema version first.

    [schema, kind, {field: value, ...}]        an array: [dtype, shape, elements]

msgspec converts every field to its annotated type and makes the record, which then checks itself.
Any fault raises RecordError, if possible with the field's name. A field with a default may be
missing. If a field is written twice, the last one counts. Elements of arrays are little-endian and
keep every bit. Decoded arrays are read-only. Nothing is ever unpickled.

Messages that are not records, such as headers, go through `pack` and `unpack`. They hold plain
values, are limited in size, and have no repeated keys.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgpack
import msgspec
import numpy as np

from r3l.errors import RecordError, SchemaVersionError
from r3l.records import Group, Record, ReflectionRecord, SlotResult

SCHEMA = 9
RECORD_LIMIT = 16 << 20  # bytes of one record
GROUP_LIMIT = 128 << 20  # bytes of the record of a whole group
HEADER_LIMIT = 64 << 10  # bytes of a message header

R = TypeVar("R", bound=Record)
_Bytes = TypeVar("_Bytes", bytes, bytes | memoryview)
_DTYPES = {name: np.dtype(name) for name in ("<i4", "<f4", "|b1")}
_FIELD = re.compile(r"(?:field `|`\$\.?)([^`]*)`")  # as msgspec's errors name it
_WRONG_CHOICE = re.compile(r"Invalid enum value .* - at `\$\.([^`]*)`\Z", re.DOTALL)
_WRONG_TYPE = re.compile(r"Expected `(\w+)`( >= \S+)?(?:, got `(\w+)`)? - at `\$\.([^`]*)`\Z")
_WORDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false",
          "object": "a mapping", "array": "a list", "null": "null", "bytes": "bytes"}  # fmt: skip
_MALFORMED = (ValueError, TypeError, OverflowError, RecursionError)  # what msgspec and numpy raise


def encode(record: Record) -> bytes:
    """Encodes a record. Raises RecordError if it is too large, or if a value cannot be encoded."""
    kind = type(record).__name__
    try:
        data = _encode((SCHEMA, kind, record))
    except _MALFORMED as error:
        raise RecordError(f"{kind} cannot be written: {error}") from None
    return check_size(data, _limit(type(record)))


def decode(kind: type[R], data: bytes | memoryview) -> R:
    """Decodes a record of class `kind`; checks size, schema, kind, types and fields."""
    record: R = decode_one_of((kind,), data)
    return record


def decode_one_of(kinds: Sequence[type[Record]], data: bytes | memoryview) -> Any:
    """Decodes a record of one of the classes `kinds`, with the checks of `decode`."""
    kind, fields = _open(kinds, data)
    try:
        return _decoder(kind).decode(fields)
    except _MALFORMED as error:
        raise _record_error(kind, error) from None


def body(kind: type[Record], data: bytes | memoryview) -> msgspec.Raw:
    """Returns the encoded fields of a record of class `kind`."""
    return _open((kind,), data)[1]


def encode_group(
    head: Group,
    results: Sequence[bytes | memoryview],
    reflections: Sequence[bytes | memoryview] = (),
) -> bytes:
    """Encodes a group from results and reflections that are already encoded. Does not decode
    them."""
    made: Any = tuple([body(SlotResult, result) for result in results])
    thoughts: Any = tuple([body(ReflectionRecord, each) for each in reflections])
    return encode(msgspec.structs.replace(head, results=made, reflections=thoughts))


class Bodies(msgspec.Struct):
    """The encoded fields of each result and each reflection in an encoded group."""

    results: list[msgspec.Raw] = []
    reflections: list[msgspec.Raw] = []


def group_bodies(group: bytes | memoryview) -> Bodies:
    """Returns the encoded fields of each result and each reflection in an encoded group."""
    return msgspec.msgpack.decode(body(Group, group), type=Bodies)


def pack(mapping: Mapping[str, Any], limit: int = HEADER_LIMIT) -> bytes:
    """Encodes a message header of plain values, at most `limit` bytes."""
    try:
        packed: bytes = msgpack.packb(mapping, strict_types=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"header cannot be written: {error}") from None
    return check_size(packed, limit)


def unpack(data: bytes | memoryview, limit: int = HEADER_LIMIT) -> dict[str, Any]:
    """Decodes the output of `pack`. Raises RecordError for anything else."""
    check_size(data, limit)
    try:
        mapping = msgpack.unpackb(data, object_pairs_hook=_no_duplicates)
    except RecordError:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RecordError(f"not msgpack: {error!r:.200}") from None
    if not isinstance(mapping, dict):
        raise RecordError(f"header is a {type(mapping).__name__}; a map is expected")
    return mapping


def check_size(data: _Bytes, limit: int = RECORD_LIMIT) -> _Bytes:
    """Returns `data`. Raises RecordError if it is longer than `limit`."""
    if len(data) > limit:
        raise RecordError(f"{len(data)} bytes; the limit is {limit}", cause="too_large")
    return data


def _limit(kind: type[Record]) -> int:
    """Returns how many bytes a record of a class may have."""
    return GROUP_LIMIT if kind is Group else RECORD_LIMIT


def _open(
    kinds: Sequence[type[Record]], data: bytes | memoryview
) -> tuple[type[Record], msgspec.Raw]:
    """Checks a record's size and schema. Returns the class (one of `kinds`) and the fields."""
    check_size(data, max(map(_limit, kinds)))
    try:
        schema, name, fields = _envelope.decode(data)
    except _MALFORMED as error:
        raise RecordError(f"the record is not a list [schema, kind, fields]: {error}") from None
    if schema != SCHEMA:
        raise SchemaVersionError(
            f"record of schema {schema}; this r3l reads only schema {SCHEMA}", schema=schema
        )
    for kind in kinds:
        if kind.__name__ == name:
            return kind, fields
    expected = " or ".join(kind.__name__ for kind in kinds)
    raise RecordError(f"record is a {name!r:.80}, not a {expected}", field="kind")


def _no_duplicates(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise RecordError("a map has the same key twice")
    return mapping


def _record_error(kind: type[Record], error: Exception) -> RecordError:
    """Turns an error of msgspec or of the record's own check into a RecordError."""
    named = _FIELD.search(str(error))
    facts = {"field": named[1]} if named else {}
    if isinstance(error.__cause__, RecordError):
        facts = error.__cause__.facts
    wrong = _WRONG_CHOICE.match(str(error))
    rule = f"; must be one of {', '.join(_choices(kind, wrong[1]))}" if wrong else ""
    return RecordError(f"{kind.__name__}: {_in_words(str(error))}{rule}", **facts)


def _in_words(fault: str) -> str:
    """Returns msgspec's sentence about a field of another type, as r3l says it."""
    wrong = _WRONG_TYPE.match(fault)
    if wrong is None or wrong[1] not in _WORDS:
        return fault
    limit = f" from{wrong[2].removeprefix(' >=')} on" if wrong[2] else ""
    named = "a fraction" if wrong[3] == "float" else _WORDS.get(wrong[3], wrong[3])
    given = f", not {named}" if wrong[3] else ""
    return f"{wrong[4]} must be {_WORDS[wrong[1]]}{limit}{given}"


def _choices(hint: Any, path: str) -> tuple[str, ...]:
    """Returns the values of the Literal at `path`, such as `results[0].status`."""
    for name in re.sub(r"\[.*?\]", "", path).split("."):
        hint = get_type_hints(hint)[name]
        while get_origin(hint) not in (None, Literal):  # of Sequence[X] and X | None
            hint = get_args(hint)[0]
    return get_args(hint)


def _write_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r:.80} is neither a plain value nor an array")


def _read_array(hint: Any, value: Any) -> Any:
    """Reads an array. The enclosing record checks that dtype and shape fit the field."""
    name, shape, elements = value
    if name not in _DTYPES or type(elements) is not bytes:
        raise ValueError(f"the value is not an encoded array of {' or '.join(_DTYPES)}")
    array = np.ndarray(shape, _DTYPES[name], elements)
    if array.nbytes != len(elements):
        raise ValueError(f"dtype {name} and shape {shape} do not fit {len(elements)} bytes")
    if name == "|b1" and elements.translate(None, b"\0\1"):
        raise ValueError("a boolean is neither 0 nor 1")
    return array


_encode = msgspec.msgpack.Encoder(enc_hook=_write_array).encode
_envelope = msgspec.msgpack.Decoder(tuple[int, str, msgspec.Raw])


@cache
def _decoder(kind: type[Record]) -> Any:
    return msgspec.msgpack.Decoder(kind, dec_hook=_read_array)
