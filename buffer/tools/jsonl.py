"""Records as JSON lines: arrays are lists, maps have text keys, bytes are base64.

JSON has neither NaN nor infinities. If an array holds such a number, the list has its bits as text,
such as "0x7fc00000".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from r3l.errors import UserError

T = TypeVar("T")


def write(path: Path, records: Iterable[Any]) -> int:
    """Write one line per record; returns the number of lines."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(plain(record)) + "\n")
            count += 1
    return count


def read(path: Path, kind: type[T]) -> Iterator[T]:
    """Yields the records that `write` wrote. Raises UserError with the line number if a line is not
    a record."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield record_of(kind, json.loads(line))
            except (ValueError, TypeError, OverflowError) as error:
                raise UserError(f"{path}, line {number}: not a {kind.__name__} ({error})") from None


def plain(record: Any) -> Any:
    """Converts a record, or a value in a record, to values that JSON can hold."""
    return msgspec.to_builtins(record, enc_hook=_list_of, str_keys=True)


def record_of(kind: type[T], value: Any) -> T:
    """Converts a `plain` value back to its record, checked like a record from the network."""
    return msgspec.convert(value, kind, dec_hook=_array_of, str_keys=True)


def _list_of(array: npt.NDArray[Any]) -> list[Any]:
    numbers: list[Any] = array.tolist()
    if array.dtype.kind == "f":
        for at in np.flatnonzero(~np.isfinite(array)):
            numbers[at] = f"{array.view(f'u{array.itemsize}')[at]:#x}"
    return numbers


def _array_of(hint: Any, values: list[Any]) -> npt.NDArray[Any]:
    dtype = np.dtype(get_args(get_args(hint)[1])[0])
    if dtype.kind != "f":
        return np.array(values, dtype)
    bits = {at: int(text, 16) for at, text in enumerate(values) if isinstance(text, str)}
    array = np.array([0.0 if at in bits else number for at, number in enumerate(values)], dtype)
    for at, number in bits.items():
        array.view(f"u{dtype.itemsize}")[at] = number
    return array
