"""The base of every group of settings."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

LONGEST_S = 1e9  # limit of settings that are times


class Section(BaseModel):
    """A group of settings. A settings file may leave a section empty. A section that has a `name`
    may be given as that name alone, for example `algorithm: grpo`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, value: Any) -> Any:
        if isinstance(value, str) and "name" not in cls.model_fields:
            return value
        return in_full(value)


def in_full(value: Any) -> Any:
    """Turns a section into a mapping if it is written as a bare name or left empty."""
    if value is None:
        return {}
    return {"name": value} if isinstance(value, str) else value


def flat_settings(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings into one mapping, whose keys are full names such as `learner.lr`.
    Keeps an empty mapping as a value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
