"""Checksums of values. A stored value ends with a checksum of its table, key and value.

    stored = value ◦ XXH3-64(value), seeded with XXH3-64(table ◦ NUL ◦ key)

Only the schema has no checksum, so that every version of r3l can read the schema. Every read
compares the checksum, because LMDB does not check its pages.
"""

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from r3l.errors import StoreError

BYTES = 8
"""Length of a checksum, bytes."""
WITHOUT = ("sys", b"schema")


def add(table: str, key: bytes, value: bytes | memoryview) -> bytes:
    """Returns a value followed by its checksum."""
    if (table, key) == WITHOUT:
        return bytes(value)
    return b"".join((value, _checksum(table, key, value)))


def remove(table: str, key: bytes, stored: bytes) -> bytes:
    """Returns the value without its checksum. Raises StoreError if the checksum is wrong."""
    if not fits(table, key, stored):
        raise StoreError(
            f"table {table}, key {key!r:.100}: the value is damaged (checksum mismatch); "
            "list all damage with r3l-buffer verify, and restore an earlier copy",
            cause="damage",
        )
    return stored if (table, key) == WITHOUT else stored[:-BYTES]


def fits(table: str, key: bytes, stored: bytes) -> bool:
    """Returns whether the checksum at the end of `stored` fits the table, the key and the value."""
    if (table, key) == WITHOUT:
        return True
    value = memoryview(stored)[:-BYTES]
    return len(stored) >= BYTES and stored[-BYTES:] == _checksum(table, key, value)


def _checksum(table: str, key: bytes, value: bytes | memoryview) -> bytes:
    return xxh3_64_digest(value, xxh3_64_intdigest(b"\0".join((table.encode(), key))))
