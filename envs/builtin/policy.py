"""The built-in worlds and the policy that ships with them."""

from __future__ import annotations

from pathlib import Path

from r3l.model_folder import user_path

BUILTIN_WORLDS = ("workshop", "keys")
"""Environments of this package that need no other package and have a demonstrator."""


def builtin_policy() -> Path:
    """The shipped tiny policy, a Hugging Face model folder (made by `r3l-learner warmup`)."""
    return Path(__file__).parent / "policies" / "tiny"


def model_path(name: str) -> Path:
    """The model folder behind the setting `model`: a path, or `builtin`. Raises UserError."""
    return builtin_policy() if name == "builtin" else user_path(name).resolve()
