"""Lines about wrong settings (tests/r3l/run/test_config.py has one for every kind)."""

import pytest
from pydantic import ValidationError

from r3l.run.config import RunConfig
from r3l.settings.error_text import all_keys, one_line, shown


def test_every_setting_has_its_key_those_of_all_algorithms_too() -> None:
    keys = set(all_keys(RunConfig))
    assert {"seed", "learner.lr", "buffer.sampler.reuse", "algorithm.alpha"} <= keys
    assert "algorithm.constrained_reflection" in keys and "lr" not in keys


def test_long_values_are_shortened() -> None:
    assert shown([1, "ä", None, True]) == '[1, "ä", null, true]'
    assert len(shown("x" * 500)) == 80


def test_a_line_names_the_setting_its_rule_and_what_was_given() -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate({"learner": {"lr": 0}})
    line = "config learner.lr: must be more than 0, not 0"
    assert one_line(RunConfig, caught.value) == line
