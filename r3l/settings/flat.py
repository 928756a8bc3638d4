"""Nested settings by their full names, such as `learner.lr`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flat_settings(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested mappings by `outer.inner`; an empty mapping is a value itself."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
