"""Converts records to values that JSON can hold, and back.

Arrays become lists, map keys become text, and bytes become base64. JSON has neither NaN nor
infinities. In an array, these numbers become text that shows their bits, such as "0x7fc00000".
"""

from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from r3l.errors import RecordError
from r3l.records import Record

R = TypeVar("R", bound=Record)


def plain(record: Any) -> Any:
    """Converts a record, or a value in a record, to values that JSON can hold."""
    return msgspec.to_builtins(record, enc_hook=_list_of, str_keys=True)


def record(value: Any, kind: type[R]) -> R:
    """Makes a record of class `kind` from what `plain` returned. Raises RecordError."""
    try:
        return msgspec.convert(value, kind, dec_hook=_array_of, str_keys=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise RecordError(f"{kind.__name__}: {error!s:.200}") from None


def _array_of(hint: Any, values: Any) -> Any:
    """Makes an array from its list. Raises ValueError if a number does not fit its type."""
    dtype = np.dtype(get_args(get_args(hint)[1])[0])
    if not isinstance(values, list):
        raise ValueError(f"{values!r:.40} is not a list")
    bits = [(at, text) for at, text in enumerate(values) if isinstance(text, str)]
    if dtype.kind == "f":
        values = [0.0 if isinstance(each, str) else each for each in values]
    found = np.array(values) if values else np.zeros(0, dtype)
    if found.dtype.kind not in {"f": "fiu", "i": "iu", "b": "b"}[dtype.kind]:
        raise ValueError(f"a list of {found.dtype} where {dtype} is expected")
    array = found.astype(dtype)
    if dtype.kind == "i" and (array != found).any():
        raise ValueError(f"a number does not fit {dtype}")
    for at, text in bits:
        array.view(f"u{dtype.itemsize}")[at] = int(text, 16)
    return array


def _list_of(array: npt.NDArray[Any]) -> list[Any]:
    numbers: list[Any] = array.tolist()
    if array.dtype.kind == "f":
        for at in np.flatnonzero(~np.isfinite(array)):
            numbers[at] = f"{array.view(f'u{array.itemsize}')[at]:#x}"
    return numbers
