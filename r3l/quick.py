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
_NONE = 0xC0


class Unusual(Exception):
    """Bytes that are not what today's codec writes for a record of this kind."""


class Arrays(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A record's arrays as they are written: extents of each, elements of all (r3l.plain)."""

    shapes: list[_Shape]
    raw: memoryview


class Reader:
    """Reads records of one kind."""

    def __init__(self, kind: Any) -> None:
        hints = get_type_hints(kind)
        self._arrays = plain.arrays_of(kind)
        forms = {f.name: _form(hints[f.name]) for f in fields(kind) if f.name not in self._arrays}
        if self._arrays:
            forms[plain.ARRAYS] = Arrays, None
        self.struct = msgspec.defstruct(
            kind.__name__,
            [(name, form) for name, (form, _) in forms.items()],
            forbid_unknown_fields=True,
            gc=False,
        )
        self._kind, self._decode = kind, msgspec.msgpack.Decoder(self.struct).decode
        self._head = _map_head(len(forms))
        self._unfinished = [(name, finish) for name, (_, finish) in forms.items() if finish]
        self._slots = hasattr(kind, "__slots__")
        self._check = getattr(kind, "__post_init__", lambda record: None)

    def fields(self, data: Any) -> Any:
        """A struct of the fields: inner records and maps as msgspec.Raw, arrays as Arrays."""
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
        if self._arrays:
            values |= _apart(values.pop(plain.ARRAYS), self._arrays)
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
    return None if data[0] == _NONE else read(data)


def _map_head(count: int) -> bytes:
    if count < 16:
        return bytes([0x80 | count])
    return b"\xde" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdf" + count.to_bytes(4)


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
    if origin is dict and (key := _direct(arguments[0])) and (value := _direct(arguments[1])):
        if key is not str:
            return list.__class_getitem__(tuple.__class_getitem__((key, value))), dict
        return msgspec.Raw, _mapping(dict.__class_getitem__((key, value)))
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


def _mapping(form: Any) -> Callable[[Any], Any]:
    """Reads a map with text keys, in which no key is twice."""
    decode = msgspec.msgpack.Decoder(form).decode

    def finish(raw: Any) -> Any:
        data = memoryview(raw)
        try:
            mapping = decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise Unusual from None
        head = _map_head(len(mapping))
        if data[: len(head)] != head:
            raise Unusual
        return mapping

    return finish


def _apart(together: Arrays, dtypes: dict[str, np.dtype[Any]]) -> dict[str, Any]:
    """The arrays by name, read-only views of what was read."""
    raw, found, at = bytes(together.raw), {}, 0  # numpy wants them aligned
    if len(together.shapes) != len(dtypes):
        raise Unusual
    for (name, dtype), shape in zip(dtypes.items(), together.shapes, strict=True):
        try:
            found[name] = array = np.ndarray(shape, dtype, raw, at)
        except (TypeError, ValueError):  # longer than what is left
            raise Unusual from None
        end = at + array.nbytes
        if dtype == np.bool_ and raw[at:end].translate(None, b"\x00\x01"):
            raise Unusual
        at = end
    if at != len(raw):
        raise Unusual
    return found


# ── writing ─────────────────────────────────────────────────────────────────────────────────


def write(record: Any) -> bytes:
    """The fields of a record as `Reader` reads them. Raises Unusual for what msgspec cannot
    write; that every value is of its field's type is for its reader to check."""
    kind: Any = type(record)
    convert = _converter(kind)
    try:
        return _encode(record if convert is None else convert(record))
    except (TypeError, ValueError, AttributeError, BufferError, OverflowError, RecursionError):
        raise Unusual from None


def write_open(record: Any, last: str, count: int) -> bytes:
    """`write` with the field `last` at the end: a list of `count`, whose members must follow."""
    kind: Any = type(record)
    names, values_of = _layout(kind)
    values = dict(zip(names, values_of(record), strict=True))
    del values[last]
    return _encode(values | {last: ()})[:-1] + _list_head(count)


def _of_numpy(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(value)


_encoder = msgspec.msgpack.Encoder(enc_hook=_of_numpy)
_encode = _encoder.encode


@cache
def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """For what msgspec would write otherwise than r3l.plain: arrays, maps without text keys."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is dict and arguments[0] is not str:
        return lambda mapping: list(mapping.items())
    if _is_record(hint):
        return _record_converter(hint)
    if origin in (Union, types.UnionType) and (one := _converter(arguments[0])):
        return _unless_none(one)
    if origin is tuple and any(map(_converter, arguments)):
        one = _converter(arguments[0])
        assert one is not None and arguments[-1] is Ellipsis, hint
        return lambda values: [one(value) for value in values]
    assert not any(map(_converter, arguments)), hint
    return None


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _record_converter(kind: Any) -> Callable[[Any], Any] | None:
    """Makes the struct that a reader of this kind reads, where the record itself will not do."""
    names, values_of = _layout(kind)
    if not plain.arrays_of(kind) and not any(_converter(get_type_hints(kind)[n]) for n in names):
        return None
    struct = reader(kind).struct
    return lambda record: struct(*values_of(record))


@cache
def _layout(kind: Any) -> tuple[list[str], Callable[[Any], list[Any]]]:
    """Names of what is written of a record, and what makes the values."""
    hints, arrays = get_type_hints(kind), list(plain.arrays_of(kind))
    names = [f.name for f in fields(kind) if f.name not in arrays]
    found = [(at, _converter(hints[name])) for at, name in enumerate(names)]
    conversions = [(at, convert) for at, convert in found if convert is not None]
    get = operator.attrgetter(*names, *arrays, "__class__")  # of one name it would be no tuple

    def values_of(record: Any) -> list[Any]:
        values = list(get(record)[:-1])
        for at, convert in conversions:
            values[at] = convert(values[at])
        if arrays:
            found = values[len(names) :]
            shapes = [array.shape for array in found]
            values[len(names) :] = [Arrays(shapes, memoryview(b"".join(found)))]
        return values

    return names + [plain.ARRAYS] * bool(arrays), values_of
