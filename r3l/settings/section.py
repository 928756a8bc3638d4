"""The base of every group of settings."""

from collections.abc import Mapping
from typing import Any, dataclass_transform, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from r3l.errors import UserError
from r3l.settings.error_text import one_line

LONGEST_S = 1e9  # limit of settings that are times


# Without the plugin of pydantic a type checker takes `Field("x")` for a field without a default.
@dataclass_transform(kw_only_default=True)
class Section(BaseModel):
    """A group of settings. A settings file may leave a section empty. A section that has a `name`
    may be given as that name alone, for example `algorithm: grpo`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, **given: Any) -> None:
        """Raises a one-line UserError for an unknown setting or a bad value."""
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise UserError(one_line(type(self), error)) from None

    # As for pydantic's own `__init__`: `model_validate` goes on without it and knows every place.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, value: Any) -> Any:
        if isinstance(value, str) and "name" not in cls.model_fields:
            return value
        value = in_full(value)
        if isinstance(value, Mapping):
            cls._refuse_mistaken(value)
        return value

    @classmethod
    def _refuse_mistaken(cls, given: Mapping[str, Any]) -> None:
        """Refuses a word such as `no` in place of true or false, since it is text in YAML 1.2.
        Refuses true or false in place of a number, since pydantic would take it for 1 or 0."""
        for name, field in cls.model_fields.items():
            kinds, value = {field.annotation, *get_args(field.annotation)}, given.get(name)
            if isinstance(value, str) and bool in kinds:
                kind = "bool_type"
            elif isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
                kind = "int_type" if int in kinds else "float_type"
            else:
                continue
            wrong = InitErrorDetails(type=kind, loc=(name,), input=value)
            raise ValidationError.from_exception_data(cls.__name__, [wrong])


def without_words(tree: dict[str, Any]) -> dict[str, Any]:
    """Returns settings of another library. Raises ValueError if one is a word such as `no`: YAML
    1.2 reads it as text, which the library would take for true."""
    for key, value in flat_settings(tree).items():
        if isinstance(value, str) and value.lower() in ("yes", "no", "on", "off"):
            raise ValueError(f"{key} is the text {value!r}; write true or false")
    return tree


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
