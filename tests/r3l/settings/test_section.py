"""A section of settings: written in full, as its name alone or as nothing; never changed."""

from collections.abc import Callable

import pytest
from pydantic import ValidationError

import r3l
from r3l.errors import UserError
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


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: r3l.GRPO(beta=0.1), "config key beta: unknown (did you mean kl_coef?); this"),
        (lambda: r3l.GRPO(group_sise=8), "config key group_sise: unknown (did you mean group_size"),
        (lambda: r3l.GRPO(group_size="no"), 'config group_size: must be a whole number, not "no"'),
        (lambda: r3l.RunConfig(batch_size=3), "config key batch_size: unknown (did you mean "
                                              "learner.groups_per_step?); this section knows mod"),
        (lambda: r3l.RunConfig(learner={"learning_rate": 1}), "config key learner.learning_rate: "
                                                              "unknown (did you mean learner.lr?)"),
    ],
)  # fmt: skip
def test_a_wrong_setting_of_a_class_in_a_script_is_the_line_of_the_command_line(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)
