"""The base of every group of settings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

LONGEST_S = 1e9  # of any time that can be set


class Section(BaseModel):
    """A group of settings. A section with a `name` may be written as that name alone, one in
    which nothing is set as nothing. Numbers are finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, value: Any) -> Any:
        if isinstance(value, str) and "name" not in cls.model_fields:
            return value
        return in_full(value)


def in_full(value: Any) -> Any:
    """A section as a mapping, if it is written as its name alone or as nothing."""
    if value is None:
        return {}
    return {"name": value} if isinstance(value, str) else value
