"""A section of settings: written in full, as its name alone or as nothing; never changed."""

import pytest
from pydantic import ValidationError

from r3l.settings.section import Section, flat_settings


class Sampler(Section):
    name: str = "fifo"
    reuse: float = 1.0


class Limits(Section):
    seconds: float = 60.0


def test_a_section_with_a_name_may_be_written_as_that_name_alone():
    assert Sampler.model_validate("freshest") == Sampler(name="freshest")
    with pytest.raises(ValidationError, match="should be a valid dictionary"):
        Limits.model_validate("freshest")


def test_a_section_may_be_written_as_nothing():
    assert Sampler.model_validate(None) == Sampler() and Limits.model_validate(None) == Limits()


@pytest.mark.parametrize("values", [{"second": 1}, {"seconds": "inf"}, {"seconds": float("nan")}])
def test_an_unknown_key_and_a_number_that_is_not_finite_are_refused(values):
    with pytest.raises(ValidationError):
        Limits.model_validate(values)


def test_a_section_cannot_be_changed():
    with pytest.raises(ValidationError):
        Limits().seconds = 1.0


def test_nested_settings_are_named_in_full_and_an_empty_section_is_a_value() -> None:
    tree = {"seed": 1, "env": {"name": "keys", "options": {}, "others": {"a": {"b": None}}}}
    assert flat_settings(tree) == {
        "seed": 1,
        "env.name": "keys",
        "env.options": {},
        "env.others.a.b": None,
    }
