"""Records as plain values, by their dataclasses' annotations; every error is named.

Plain values are what msgpack knows: numbers, text, bytes, lists, and maps with text keys. A record
is a map of its fields. Its arrays stand together in one more, `arrays`: `[shapes, elements]`, where
the elements are little-endian, array after array in the order of `arrays_of`. Records of schema 1
have each array by itself, as `[dtype, shape, elements]` under its field's name; they are read too.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgpack
import numpy as np
import numpy.typing as npt

from r3l.errors import RecordError

RECORD_LIMIT = 16 << 20  # bytes of one record
NESTING_LIMIT = 16  # levels of free-form values, such as Task.options
RANK_LIMIT = 4  # dimensions of an array
ARRAYS = "arrays"  # under what a record's arrays stand

Write = Callable[[Any, str], Any]
Read = Callable[[Any, str], Any]


def pack(value: Any) -> bytes:
    """Plain values as bytes. Raises RecordError for what is not plain."""
    try:
        packed: bytes = msgpack.packb(value, strict_types=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"value that is not plain: {error}") from None
    return packed


def unpack(data: Any) -> Any:
    """The plain values that `data` holds. Raises RecordError for anything else."""
    try:
        return msgpack.unpackb(data, object_pairs_hook=_no_duplicates)
    except RecordError:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RecordError(f"not msgpack: {error!r:.200}") from None


def _no_duplicates(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise RecordError("a map holds the same key twice")
    return mapping


@cache
def rules(hint: Any) -> tuple[Write, Read]:
    """How a value of this annotation is written and read."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return _SCALARS[hint], _SCALARS[hint]
    if hint is Any:
        return _any, _any
    if is_dataclass(hint) and isinstance(hint, type):
        return _record_rules(hint)
    if origin is Literal:
        return _literal_rules(arguments)
    if origin in (Union, types.UnionType):
        return _optional_rules(arguments)
    if origin is tuple:
        return _tuple_rules(arguments)
    if origin is dict:
        return _dict_rules(*arguments)
    if (dtype := array_dtype(hint)) is not None:
        return _array_rules(dtype)
    raise TypeError(f"codec has no rule for {hint}")


def array_dtype(hint: Any) -> np.dtype[Any] | None:
    """The dtype an array's annotation asks for; None for what is no array's."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is np.ndarray:
        hint = get_args(arguments[1])[0]
    elif origin is npt.NDArray:  # NumPy 2.5 keeps its alias visible on Python 3.12
        hint = arguments[0]
    else:
        return None
    dtype: np.dtype[Any] = np.dtype(hint)
    return dtype


@cache
def arrays_of(kind: Any) -> dict[str, np.dtype[Any]]:
    """Name and little-endian dtype of a record's arrays, in the order in which they are written:
    those of wide elements first, so that none lies across their width."""
    hints = get_type_hints(kind)
    found = {f.name: dtype for f in fields(kind) if (dtype := array_dtype(hints[f.name]))}
    ordered = sorted(found, key=lambda name: -found[name].itemsize)
    return {name: found[name].newbyteorder("<") for name in ordered}


def _bad(value: Any, where: str, expected: str) -> RecordError:
    shown = repr(value)[:80]
    return RecordError(f"{where} is {shown}; it must be {expected}", field=where)


def _bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _bad(value, where, "true or false")
    return bool(value)


def _int(value: Any, where: str) -> int:
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    if isinstance(value, np.integer):
        return operator.index(value)
    raise _bad(value, where, "a 64-bit integer")


def _float(value: Any, where: str) -> float:
    if type(value) is float:
        return value
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value)
    raise _bad(value, where, "a number")


def _str(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _bad(value, where, "text")
    return str(value)


def _bytes(value: Any, where: str) -> bytes:
    if not isinstance(value, bytes):
        raise _bad(value, where, "bytes")
    return value


def _any(value: Any, where: str, depth: int = 0) -> Any:
    if depth > NESTING_LIMIT:
        raise RecordError(f"{where} nests deeper than {NESTING_LIMIT} levels", field=where)
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, list | tuple):
        return [_any(inner, where, depth + 1) for inner in value]
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {key: _any(inner, where, depth + 1) for key, inner in value.items()}
    raise _bad(value, where, "plain values (numbers, text, lists, maps with text keys)")


_SCALARS: dict[Any, Write] = {bool: _bool, int: _int, float: _float, str: _str, bytes: _bytes}
_EXACT: dict[Any, type[Any]] = {bool: bool, float: float, str: str, bytes: bytes}


def _literal_rules(choices: tuple[Any, ...]) -> tuple[Write, Read]:
    def check(value: Any, where: str) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise _bad(value, where, f"one of {', '.join(choices)}")
        return value if type(value) is str else str(value)

    return check, check


def _optional_rules(arguments: tuple[Any, ...]) -> tuple[Write, Read]:
    (inner,) = (a for a in arguments if a is not types.NoneType)
    write_inner, read_inner = rules(inner)

    def write(value: Any, where: str) -> Any:
        return None if value is None else write_inner(value, where)

    def read(value: Any, where: str) -> Any:
        return None if value is None else read_inner(value, where)

    return write, read


def _tuple_rules(arguments: tuple[Any, ...]) -> tuple[Write, Read]:
    if arguments[-1] is Ellipsis:
        return _list_rules(arguments[0])
    each = [rules(argument) for argument in arguments]

    def walk(value: Any, where: str, side: int) -> list[Any]:
        if not isinstance(value, list | tuple) or len(value) != len(each):
            raise _bad(value, where, f"a list of {len(each)}")
        return [rule[side](inner, where) for rule, inner in zip(each, value, strict=True)]

    return lambda v, w: walk(v, w, 0), lambda v, w: tuple(walk(v, w, 1))


def _list_rules(hint: Any) -> tuple[Write, Read]:
    (write_one, read_one), exact = rules(hint), _EXACT.get(hint)

    def write(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _bad(value, where, "a list")
        return [one if type(one) is exact else write_one(one, where) for one in value]

    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise _bad(value, where, "a list")
        return tuple([one if type(one) is exact else read_one(one, where) for one in value])

    return write, read


def _dict_rules(key: Any, value: Any) -> tuple[Write, Read]:
    """Maps with text keys are maps; others are lists of pairs (msgpack keys stay text)."""
    write_key, read_key = rules(key)
    write_value, read_value = rules(value)

    def write(mapping: Any, where: str) -> Any:
        if not isinstance(mapping, dict):
            raise _bad(mapping, where, "a map")
        pairs = [(write_key(k, where), write_value(v, where)) for k, v in mapping.items()]
        return dict(pairs) if key is str else [list(pair) for pair in pairs]

    def read(plain: Any, where: str) -> dict[Any, Any]:
        if not isinstance(plain, dict if key is str else list):
            raise _bad(plain, where, "a map")
        pairs = list(plain.items()) if isinstance(plain, dict) else plain
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            raise _bad(plain, where, "a list of pairs")
        return {read_key(k, where): read_value(v, where) for k, v in pairs}

    return write, read


def _array_rules(dtype: np.dtype[Any]) -> tuple[Write, Read]:
    little = dtype.newbyteorder("<")
    name, width, boolean = little.str, little.itemsize, dtype == np.bool_

    def write(array: Any, where: str) -> Any:
        if not isinstance(array, np.ndarray) or array.dtype != dtype:
            raise _bad(array, where, f"a {dtype} array")
        return [name, list(array.shape), array.astype(little, copy=False).tobytes()]

    def read(plain: Any, where: str) -> Any:
        if not isinstance(plain, list) or len(plain) != 3 or plain[0] != name:
            raise _bad(plain, where, f"a {dtype} array")
        _, shape, raw = plain
        size = _array_size(shape, width, where)
        if type(raw) is not bytes or size != len(raw):
            got = f"{len(raw)} bytes" if type(raw) is bytes else "no bytes"
            raise RecordError(f"{where} has {got} for shape {shape}", field=where)
        if boolean and raw.translate(None, b"\x00\x01"):
            raise RecordError(f"{where} has booleans other than 0 and 1", field=where)
        flat = np.frombuffer(raw, little)
        return flat if len(shape) == 1 else flat.reshape(shape)

    return write, read


def _array_size(shape: Any, width: int, where: str) -> int:
    """Bytes of an array of this shape."""
    size = width
    for extent in shape if type(shape) is list and len(shape) <= RANK_LIMIT else [None]:
        if type(extent) is not int or not 0 <= extent <= RECORD_LIMIT:
            raise _bad(shape, f"{where} shape", f"at most {RANK_LIMIT} counts")
        size *= extent
    return size


def _put_together(plain: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A record's fields with its arrays, each by itself, as one."""
    if alone := [plain.pop(name) for name in names]:
        shapes, elements = [shape for _, shape, _ in alone], [raw for _, _, raw in alone]
        plain[ARRAYS] = [shapes, b"".join(elements)]
    return plain


def _take_apart(plain: dict[str, Any], kind: Any) -> dict[str, Any]:
    """A record's fields with each of its arrays by itself."""
    where, dtypes = f"{kind.__name__}.{ARRAYS}", arrays_of(kind)
    together = plain[ARRAYS]
    if not isinstance(together, list) or len(together) != 2 or type(together[1]) is not bytes:
        raise _bad(together, where, "a list of shapes and elements")
    shapes, raw = together
    if type(shapes) is not list or len(shapes) != len(dtypes):
        raise _bad(shapes, f"{where} shapes", f"{len(dtypes)} shapes")
    alone, at = {}, 0
    for (name, dtype), shape in zip(dtypes.items(), shapes, strict=True):
        end = at + _array_size(shape, dtype.itemsize, f"{kind.__name__}.{name}")
        alone[name] = [dtype.str, shape, raw[at:end]]
        at = end
    if at != len(raw):
        raise RecordError(f"{where} has {len(raw)} bytes for shapes {shapes}", field=where)
    if twice := alone.keys() & plain.keys():
        raise RecordError(f"{kind.__name__} has {', '.join(sorted(twice))} twice", field=where)
    return {name: value for name, value in plain.items() if name != ARRAYS} | alone


def _record_rules(kind: Any) -> tuple[Write, Read]:
    hints, arrays = get_type_hints(kind), arrays_of(kind)
    # (place, type of which every value is right, write, read) by field
    known = {
        f.name: (f"{kind.__name__}.{f.name}", _EXACT.get(hints[f.name]), *rules(hints[f.name]))
        for f in fields(kind)
    }
    required = {
        f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
    }

    def write(record: Any, where: str) -> dict[str, Any]:
        if type(record) is not kind:
            raise _bad(record, where, f"a {kind.__name__}")
        plain = {}
        for name, (place, exact, rule, _) in known.items():
            value = getattr(record, name)
            plain[name] = value if type(value) is exact else rule(value, place)
        return _put_together(plain, arrays)

    def read(plain: Any, where: str) -> Any:
        if type(plain) is not dict:
            raise _bad(plain, where, f"the fields of a {kind.__name__}")
        if arrays and ARRAYS in plain:
            plain = _take_apart(plain, kind)
        values = {}
        for name, value in plain.items():
            if name not in known:
                raise RecordError(f"{kind.__name__} has no field {name!r:.80}", field=where)
            place, exact, _, rule = known[name]
            values[name] = value if type(value) is exact else rule(value, place)
        if len(values) < len(known) and not required <= values.keys():
            missing = sorted(required - values.keys())
            raise RecordError(f"{kind.__name__} lacks {', '.join(missing)}", field=where)
        return kind(**values)

    return write, read
