"""The tables of one transaction as keys and values of bytes, each with a checksum."""

from collections.abc import Iterator
from typing import Any, TypeVar

from buffer.storage import value_checksums
from r3l import codec
from r3l.records import Record

R = TypeVar("R", bound=Record)


class Tables:
    """The tables of a store (buffer.storage.layout) as seen by one transaction."""

    def __init__(self, raw: Any, tables: dict[str, Any]) -> None:
        self._raw, self._tables = raw, tables

    def get(self, table: str, key: bytes) -> bytes | None:
        """Returns a copy of the value under `key`. Raises StoreError if the value is damaged."""
        stored = self._raw.get(key, db=self._tables[table]) if key else None
        return None if stored is None else value_checksums.remove(table, key, stored)

    def damaged(self) -> Iterator[str]:
        """Yields one line about each damaged value."""
        for table, db in self._tables.items():
            with self._raw.cursor(db) as cursor:
                for key, stored in cursor:
                    if not value_checksums.fits(table, key, stored):
                        yield f"table {table}, key {key!r:.100}: is damaged (checksum mismatch)"

    def is_sound(self, table: str, key: bytes) -> bool:
        """Whether there is a value under `key` that is not damaged."""
        stored = self._raw.get(key, db=self._tables[table])
        return stored is not None and value_checksums.fits(table, key, stored)

    def put(self, table: str, key: bytes, value: bytes | memoryview) -> None:
        self._raw.put(key, value_checksums.add(table, key, value), db=self._tables[table])

    def delete(self, table: str, key: bytes) -> None:
        self._raw.delete(key, db=self._tables[table])

    def delete_all(self, table: str, prefix: bytes) -> None:
        """Deletes every key that begins with `prefix`."""
        for key in list(self.keys(table, prefix)):
            self.delete(table, key)

    def scan(
        self, table: str, prefix: bytes = b"", *, backwards: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yields (key, value) of every key that begins with `prefix`, in key order. Raises
        StoreError if a value is damaged."""
        with self._raw.cursor(self._tables[table]) as cursor:
            if _seek(cursor, prefix, backwards):
                for key, value in (cursor.iterprev if backwards else cursor.iternext)():
                    if not key.startswith(prefix):
                        return
                    yield key, value_checksums.remove(table, key, value)

    def keys(
        self, table: str, prefix: bytes = b"", *, backwards: bool = False, before: bytes = b""
    ) -> Iterator[bytes]:
        """Yields every key that begins with `prefix`, in order, without reading the values.
        `before`: with `backwards`, only the keys before `prefix` + `before`."""
        with self._raw.cursor(self._tables[table]) as cursor:
            if _seek(cursor, prefix, backwards, before):
                for key in (cursor.iterprev if backwards else cursor.iternext)(values=False):
                    if not key.startswith(prefix):
                        return
                    yield key

    def read(self, table: str, key: bytes, kind: type[R]) -> R | None:
        """Returns the record under `key`, or None if there is none. Raises StoreError if it is
        damaged."""
        data = self.get(table, key)
        return None if data is None else codec.decode(kind, data)

    def size(self, table: str) -> int:
        """Returns the number of keys."""
        return int(self._raw.stat(self._tables[table])["entries"])


def _seek(cursor: Any, prefix: bytes, backwards: bool, before: bytes = b"") -> bool:
    """Moves the cursor to the first key with `prefix`; if `backwards`, to the last one, or to the
    last one before `prefix` and `before`. If no key has `prefix`, returns False or stops at another
    key."""
    if not backwards:
        return bool(cursor.set_range(prefix) if prefix else cursor.first())
    end = prefix + (before or (prefix and b"\xff" * 16))
    if end and cursor.set_range(end):
        return bool(cursor.prev())
    return bool(cursor.last())
