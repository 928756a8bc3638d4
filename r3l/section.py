"""The base of every group of settings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """A group of settings. A section with a `name` may be written as that name alone, one in
    which nothing is set as nothing. Numbers are finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, value: Any) -> Any:
        if value is None:
            return {}
        return {"name": value} if isinstance(value, str) and "name" in cls.model_fields else value
