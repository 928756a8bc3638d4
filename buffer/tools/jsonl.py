"""Records as lines of JSON: arrays are lists, maps have text keys, bytes are hexadecimal.

JSON has neither NaN nor infinities; where an array holds one, the list has its bits as text,
such as "0x7fc00000".
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from r3l import codec
from r3l.errors import R3LError, UserError

T = TypeVar("T")


def write(path: Path, kind: type[T], records: Iterable[T]) -> int:
    """One line per record; returns how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(plain(record)) + "\n")
            count += 1
    return count


def read(path: Path, kind: type[T]) -> Iterator[T]:
    """The records `write` wrote; raises UserError, with the line, for anything else."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield record_of(kind, json.loads(line))
            except (
                R3LError,
                ArithmeticError,
                ValueError,
                TypeError,
                LookupError,
                AttributeError,
            ) as error:
                raise UserError(f"{path}, line {number}: no {kind.__name__} ({error})") from None


def plain(value: Any) -> Any:
    """A record as values JSON can hold."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return _floats(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def record_of(kind: type[T], value: Any) -> T:
    """The record whose `plain` value this is, checked like one from the wire."""
    return codec.from_plain(kind, codec.to_plain(typed(kind, value)))


def typed(hint: Any, value: Any) -> Any:
    """A value of the annotated type, from lists and maps."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{name: typed(hints[name], inner) for name, inner in value.items()})  # type: ignore[operator]
    if origin in (Union, types.UnionType):
        (inner,) = (a for a in arguments if a is not types.NoneType)
        return None if value is None else typed(inner, value)
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(typed(k, inner) for k, inner in zip(kinds, value, strict=True))
    if origin is dict:
        return {arguments[0](key): typed(arguments[1], inner) for key, inner in value.items()}
    if origin is np.ndarray:
        dtype = np.dtype(get_args(arguments[1])[0])
        return _array_of_floats(value, dtype) if dtype.kind == "f" else np.array(value, dtype)
    return float(value) if hint is float else value


def _floats(array: npt.NDArray[Any]) -> list[Any]:
    numbers: list[Any] = array.tolist()
    for at in np.flatnonzero(~np.isfinite(array)):
        numbers[at] = f"{array.view(f'u{array.itemsize}')[at]:#x}"
    return numbers


def _array_of_floats(values: list[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    bits = {at: int(text, 16) for at, text in enumerate(values) if isinstance(text, str)}
    array = np.array([0.0 if at in bits else number for at, number in enumerate(values)], dtype)
    for at, number in bits.items():
        array.view(f"u{dtype.itemsize}")[at] = number
    return array
