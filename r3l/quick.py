"""Records the quick way: written and read by msgspec, after their dataclasses' annotations.

A record as the codec writes it has each of its fields exactly once. msgspec reads such a one and
checks its types in C. Whatever is not exactly so (fields of an older schema, a field twice, a
value of another type) is Unusual, and left to the careful reader in r3l.plain, which takes it or
names what is wrong.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from r3l import plain
from r3l.errors import RecordError

Finish = Callable[[Any], Any] | None  # makes a field's value of what msgspec read

_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Extent = Annotated[int, msgspec.Meta(ge=0, le=plain.RECORD_LIMIT)]
_Shape = Annotated[list[_Extent], msgspec.Meta(max_length=plain.RANK_LIMIT)]
_NONE = b"\xc0"
_CODES = {np.dtype(t): np.dtype(t).newbyteorder("<").str for t in ("i4", "f4", "?")}


class Unusual(Exception):
    """Bytes that are not what today's codec writes for a record of this kind."""


class Column(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """An array as it is written: name of its dtype, extents, elements little-endian."""

    dtype: str
    shape: _Shape
    raw: bytes

    def has(self, dtype: str, size: int, shape: list[int]) -> bool:
        """Whether it is of this dtype and shape, whose elements take `size` bytes."""
        return self.dtype == dtype and len(self.raw) == size and self.shape == shape

    def sound(self, dtype: str) -> bool:
        """Whether it is of this dtype and has as many bytes as its shape says."""
        size = int(dtype[2:])
        for extent in self.shape:
            size *= extent
        return self.dtype == dtype and size == len(self.raw)


class Reader:
    """Reads records of one kind."""

    def __init__(self, kind: type[Any]) -> None:
        hints = get_type_hints(kind)
        forms = {f.name: _form(hints[f.name]) for f in fields(kind)}
        struct = msgspec.defstruct(
            kind.__name__,
            [(name, form) for name, (form, _) in forms.items()],
            forbid_unknown_fields=True,
            gc=False,
        )
        self._kind, self._decode = kind, msgspec.msgpack.Decoder(struct).decode
        self._head = _map_head(len(forms))
        self._unfinished = [(name, finish) for name, (_, finish) in forms.items() if finish]
        self._slots = hasattr(kind, "__slots__")
        self._check = getattr(kind, "__post_init__", lambda record: None)

    def fields(self, data: Any) -> Any:
        """A struct of the fields: arrays as Column, inner records and maps as msgspec.Raw."""
        # As many fields as there are, none unknown, none missing: then none twice.
        if data[: len(self._head)] != self._head:
            raise Unusual
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise Unusual from None

    def read(self, data: Any) -> Any:
        """The record; raises what its own checks raise."""
        values = msgspec.structs.asdict(self.fields(data))
        for name, finish in self._unfinished:
            values[name] = finish(values[name])
        if self._slots:
            return self._kind(**values)
        record = object.__new__(self._kind)
        record.__dict__.update(values)
        self._check(record)
        return record


def reader(kind: Any) -> Reader:
    """The reader for records of this kind."""
    return _reader(kind)


_reader = cache(Reader)


def optional(read: Callable[[memoryview], Any], raw: msgspec.Raw) -> Any:
    """What `read` makes of a record that may be None."""
    data = memoryview(raw)
    return None if data == _NONE else read(data)


def _map_head(count: int) -> bytes:
    return bytes([0x80 | count]) if count < 16 else b"\xde" + count.to_bytes(2, "big")


def _list_head(count: int) -> bytes:
    return bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


@cache
def _form(hint: Any) -> tuple[Any, Finish]:
    """As what type msgspec reads a value of this annotation, and how it is finished."""
    origin, arguments = get_origin(hint), get_args(hint)
    if direct := _direct(hint):
        return direct, None
    if _is_record(hint):
        return msgspec.Raw, lambda raw: reader(hint).read(memoryview(raw))
    if origin in (Union, types.UnionType) and _is_record(arguments[0]):
        inner = reader(arguments[0])
        return msgspec.Raw, lambda raw: optional(inner.read, raw)
    if origin is tuple and _is_record(arguments[0]) and arguments[-1] is Ellipsis:
        one = reader(arguments[0])
        return list[msgspec.Raw], lambda raws: tuple([one.read(memoryview(r)) for r in raws])
    if (dtype := plain.array_dtype(hint)) is not None:
        return Column, _array(dtype)
    careful = plain.rules(hint)[1]
    return msgspec.Raw, lambda raw: _carefully(careful, memoryview(raw))


def _direct(hint: Any) -> Any:
    """The msgspec type whose values are the field's values as they are read; or None."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is int:
        return _Int64
    if hint in (bool, float, str, bytes) or origin is Literal:
        return hint
    if origin in (Union, types.UnionType):
        inner = [_direct(a) for a in arguments if a is not types.NoneType]
        return inner[0] | None if len(inner) == 1 and inner[0] else None
    if origin is tuple:
        each = [a if a is Ellipsis else _direct(a) for a in arguments]
        return tuple.__class_getitem__(tuple(each)) if all(each) else None
    return None


def _is_record(hint: Any) -> bool:
    return is_dataclass(hint) and isinstance(hint, type)


def _carefully(read: plain.Read, raw: memoryview) -> Any:
    try:
        return read(plain.unpack(raw), "")
    except RecordError:  # to be named with its place, by who reads the whole carefully
        raise Unusual from None


def _array(dtype: np.dtype[Any]) -> Callable[[Column], Any]:
    little = dtype.newbyteorder("<")
    name, boolean = little.str, dtype == np.bool_

    def finish(column: Column) -> Any:
        if not column.sound(name) or (boolean and column.raw.translate(None, b"\x00\x01")):
            raise Unusual
        flat = np.frombuffer(column.raw, little)
        return flat if len(column.shape) == 1 else flat.reshape(column.shape)

    return finish


# ── writing ─────────────────────────────────────────────────────────────────────────────────


def write(record: Any) -> bytes:
    """The fields of a record as `Reader` reads them. Raises Unusual for what msgspec cannot
    write; that every value is of its field's type is for its reader to check."""
    kind: Any = type(record)
    convert = _converter(kind)
    try:
        return _encode(record if convert is None else convert(record))
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError):
        raise Unusual from None


def write_into(buffer: bytearray, record: Any) -> None:
    """`write` at the end of a buffer."""
    kind: Any = type(record)
    convert = _converter(kind)
    try:
        _encoder.encode_into(record if convert is None else convert(record), buffer, -1)
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError):
        raise Unusual from None


def write_open(record: Any, last: str, count: int) -> bytes:
    """`write` with the field `last` at the end: a list of `count`, whose members must follow."""
    values = _values(record)
    del values[last]
    return _encode(values | {last: ()})[:-1] + _list_head(count)


def _of_numpy(value: Any) -> Any:
    if type(value) is np.ndarray:
        return _CODES[value.dtype], value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(value)


_encoder = msgspec.msgpack.Encoder(enc_hook=_of_numpy)
_encode = _encoder.encode


@cache
def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """What msgspec would write otherwise than r3l.plain: maps whose keys are not text."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is dict and arguments[0] is not str:
        return lambda mapping: list(mapping.items())
    if _is_record(hint):
        return _values if _layout(hint)[2] else None
    if origin is tuple and any(map(_converter, arguments)):
        one = _converter(arguments[0])
        assert one is not None and arguments[-1] is Ellipsis, hint
        return lambda values: [one(value) for value in values]
    assert not any(map(_converter, arguments)), hint
    return None


def _values(record: Any) -> dict[str, Any]:
    kind: Any = type(record)
    names, get, conversions = _layout(kind)
    values = dict(zip(names, get(record), strict=True))
    for name, convert in conversions:
        values[name] = convert(values[name])
    return values


@cache
def _layout(kind: Any) -> tuple[list[str], Any, list[tuple[str, Callable[[Any], Any]]]]:
    """Names of a record's fields, what gets them all, and which are written otherwise."""
    hints, names = get_type_hints(kind), [f.name for f in fields(kind)]
    found = [(name, _converter(hints[name])) for name in names]
    conversions = [(name, convert) for name, convert in found if convert is not None]
    return names, operator.attrgetter(*names), conversions
