"""Increments of a record that grows: what its later form adds to an earlier one.

earlier, later ─► difference ─► change ─► Growing(earlier).add(change) ─► later, bit for bit

    [SET, value]                 another value
    [TAIL, keep, tail]           the first `keep` bytes or characters, then others
    [FIELDS, {key: change}]      changed values of a map
    [ITEMS, {at: change}, tail]  changed items of a list, and more of them

A change is msgpack. A change does not show which record it belongs to. So its sender also gives the
`digest` of both forms.
"""

from typing import Any

import msgspec
from xxhash import xxh3_128_hexdigest

from r3l.errors import RecordError

SET, TAIL, FIELDS, ITEMS = range(4)
_MALFORMED = (
    AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
)  # fmt: skip

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


def digest(encoded: bytes | memoryview) -> str:
    """Returns the XXH3-128 of an encoded record."""
    return xxh3_128_hexdigest(encoded)


def difference(earlier: bytes, later: bytes) -> bytes:
    """Returns the encoded change from one encoded record to another."""
    new = _decode(later)
    return _encode(_change(_decode(earlier), new) or [SET, new])


class Growing:
    """An encoded record that grows as changes are added."""

    def __init__(self, encoded: bytes) -> None:
        try:
            self._value = _decode(encoded)
        except _MALFORMED as error:
            raise RecordError(f"a record that grows is not msgpack: {error!r:.100}") from None

    def add(self, change: bytes) -> None:
        """Raises RecordError if the change is malformed or belongs to another record. The record is
        then unusable."""
        try:
            self._value = _changed(self._value, _decode(change))
        except _MALFORMED as error:
            raise RecordError(f"a change does not fit its record: {error!r:.100}") from None

    def encoded(self) -> bytes:
        return _encode(self._value)


def _change(old: Any, new: Any) -> list[Any] | None:
    """Returns the change from one plain value to another, or None if they are equal."""
    if type(old) is not type(new):
        return [SET, new]
    if isinstance(new, dict) and list(old) == list(new):
        fields = {key: _change(old[key], value) for key, value in new.items()}
        changed = {key: change for key, change in fields.items() if change}
        return [FIELDS, changed] if changed else None
    if isinstance(new, list) and len(new) >= len(old):
        items = {at: _change(value, new[at]) for at, value in enumerate(old)}
        changed = {at: change for at, change in items.items() if change}
        return [ITEMS, changed, new[len(old) :]] if changed or len(new) > len(old) else None
    if isinstance(new, bytes | str):
        if new == old:
            return None
        keep = _common(old, new)
        return [TAIL, keep, new[keep:]] if keep else [SET, new]
    return None if _encode(old) == _encode(new) else [SET, new]  # 0.0 is not -0.0


def _common(old: Any, new: Any) -> int:
    """Returns how many first bytes or characters are the same."""
    same, end = 0, min(len(old), len(new))
    while same < end:  # compares halves, which is a memcmp
        middle = (same + end + 1) // 2
        if old[same:middle] == new[same:middle]:
            same = middle
        else:
            end = middle - 1
    return same


def _changed(value: Any, change: list[Any]) -> Any:
    """Returns a plain value after a change. Changes maps and lists in place."""
    kind, *given = change
    if kind == SET:
        (new,) = given
        return new
    if kind == TAIL:
        keep, tail = given
        if not 0 <= keep <= len(value):
            raise ValueError(f"keeps {keep} of {len(value)}")
        if isinstance(value, str):
            return value[:keep] + tail
        grown = value if isinstance(value, bytearray) else bytearray(value)  # not copied each time
        grown[keep:] = tail
        return grown
    if kind == FIELDS and isinstance(value, dict):
        (fields,) = given
        for key, inner in fields.items():
            value[key] = _changed(value[key], inner)
        return value
    if kind == ITEMS and isinstance(value, list):
        items, tail = given
        for at, inner in items.items():
            value[at] = _changed(value[at], inner)
        value.extend(tail)
        return value
    raise ValueError(f"{kind!r:.20} of a {type(value).__name__}")
