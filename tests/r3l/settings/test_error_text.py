"""Lines about wrong settings (tests/r3l/run/test_config.py has one for every kind)."""

import pytest
from pydantic import ValidationError

from r3l.run.config import RunConfig
from r3l.settings.error_text import SYNONYMS, all_keys, one_line, setting_called, shown


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


def test_every_name_of_another_system_means_a_setting_and_is_none_of_its_section() -> None:
    keys = set(all_keys(RunConfig))
    for name, meant in SYNONYMS.items():
        assert meant in keys, meant
        assert f"{meant.rpartition('.')[0]}.{name}".lstrip(".") not in keys, name


@pytest.mark.parametrize("name", SYNONYMS)
def test_a_name_of_another_system_is_answered_with_the_setting_wherever_it_is_given(
    name: str,
) -> None:
    parent = SYNONYMS[name].partition(".")[0]
    for tree in ({name: 1}, {name.upper().replace("_", "-"): 1}, {"learner": {name: 1}},
                 {parent: {name: 1}} if "." in SYNONYMS[name] else {name: 1}):  # fmt: skip
        with pytest.raises(ValidationError) as caught:
            RunConfig.model_validate(tree)
        line = one_line(RunConfig, caught.value)
        assert f"(did you mean {SYNONYMS[name]}?)" in line, line


def test_an_option_is_read_as_the_setting_that_has_its_name() -> None:
    called = {name: setting_called(name, RunConfig) for name in (
        "--learning-rate", "--groups-per-step", "--batch_size", "--max-tokens", "--nope", "--actor",
        "--env", "--name", "--restarts",
    )}  # fmt: skip
    assert {name: key for name, key in called.items() if key} == {
        "--learning-rate": "learner.lr",
        "--groups-per-step": "learner.groups_per_step",
        "--batch_size": "learner.groups_per_step",
        "--max-tokens": "actor.max_response_tokens",
    }
