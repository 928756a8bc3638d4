"""Keyed checksums of messages with weights, for links that are not encrypted.

Without the key, one can read a message, but not change it unnoticed. The key travels only over an
encrypted connection.
"""

import hmac
import secrets
from collections.abc import Iterable

KEY_BYTES = 32
SUM_BYTES = 32


def new_key() -> bytes:
    """Makes a key, for one publisher."""
    return secrets.token_bytes(KEY_BYTES)


def keyed_sum(key: bytes, frames: Iterable[bytes | memoryview]) -> bytes:
    """Computes the keyed checksum (BLAKE3) of a message, which covers where its frames end."""
    from blake3 import blake3

    hashed = blake3(key=key)
    for frame in frames:
        hashed.update(len(frame).to_bytes(8, "big"))
        hashed.update(frame)
    return hashed.digest(SUM_BYTES)


def is_genuine(key: bytes, frames: Iterable[bytes | memoryview], claimed: bytes) -> bool:
    """Whether `claimed` is the keyed checksum of a message."""
    return hmac.compare_digest(keyed_sum(key, frames), claimed)
