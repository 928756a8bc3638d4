"""Converts records to values that JSON can hold.

Arrays become lists, map keys become text, and bytes become base64. JSON has neither NaN nor
infinities. In an array, these numbers become text that shows their bits, such as "0x7fc00000".
"""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt


def plain(record: Any) -> Any:
    """Converts a record, or a value in a record, to values that JSON can hold."""
    return msgspec.to_builtins(record, enc_hook=_list_of, str_keys=True)


def _list_of(array: npt.NDArray[Any]) -> list[Any]:
    numbers: list[Any] = array.tolist()
    if array.dtype.kind == "f":
        for at in np.flatnonzero(~np.isfinite(array)):
            numbers[at] = f"{array.view(f'u{array.itemsize}')[at]:#x}"
    return numbers
