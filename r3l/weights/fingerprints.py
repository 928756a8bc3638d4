"""Fingerprints of the weights that sampled a stored attempt.

    <hash of what the engine held> / <digest of the published set that it loaded>

The hash depends on the layout of the engine; the digest is that of the set's manifest. The weights
that an engine started with have no digest.
"""

from __future__ import annotations

from r3l.weights.manifest import Manifest


def fingerprint(engine: str, manifest: Manifest) -> str:
    """Returns the fingerprint of an engine that loaded a set and has the hash `engine`."""
    return f"{engine}/{manifest.digest}"


def digest_of(one: str) -> str:
    """Returns the digest of the published set in a fingerprint, "" without one."""
    return one.partition("/")[2]


def agree(one: str, other: str) -> bool:
    """Whether two fingerprints may be of the same weights: the parts that both have are equal."""
    (first, _, first_set), (second, _, second_set) = one.partition("/"), other.partition("/")
    return first == second and (not first_set or not second_set or first_set == second_set)
