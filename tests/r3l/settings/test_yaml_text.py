"""YAML of settings: what it stands for, and what is refused."""

from datetime import date
from itertools import pairwise

import pytest
import yaml

from r3l.errors import UserError
from r3l.run.config import load
from r3l.settings.yaml_text import parse, write


def test_a_number_may_have_an_exponent_without_a_point_and_a_text_that_looks_so_stays_text():
    values = parse("{lr: 1e-5, rate: 2E3, name: '1e5', of: 1e5-x}", "config")
    assert values == {"lr": 1e-5, "rate": 2e3, "name": "1e5", "of": "1e5-x"}
    assert parse(write(values), "config") == values
    assert load(None, ["learner.lr=1e-5"]).learner.lr == 1e-5


def test_a_repeated_key_is_refused_by_name():
    with pytest.raises(UserError, match=r"^config run.yaml: .*line 1.*learner .*twice"):
        parse("learner:\n  lr: 1\nseed: 1\nlearner:\n  steps: 2\n", "config run.yaml")
    assert parse("a: {x: 1}\nb: {x: 2}", "config") == {"a": {"x": 1}, "b": {"x": 2}}


@pytest.mark.parametrize(
    "text",
    [
        "a: [1",
        "!!python/object:os.system {}",
        "2024-99-99",
        "1" * 5000,
        "[" * 3000,
        "0x" + "f" * 9999,
    ],
)
def test_text_that_is_not_plain_yaml_is_refused_in_one_line(text):
    with pytest.raises(UserError, match=r"^config: not valid YAML ") as caught:
        parse(text, "config")
    assert "\n" not in str(caught.value)


def test_an_alias_is_refused_by_name_and_none_is_written():
    bomb = "a: &a [x, x]\n" + "".join(
        f"{name}: &{name} [*{old}, *{old}]\n" for old, name in pairwise("abcdefghi")
    )
    with pytest.raises(UserError, match=r"^config: .*line 2, column 8: \*a .*alias"):
        parse(bomb, "config")
    with pytest.raises(UserError, match=r"^override 'env.options=\*x': .*\*x .*alias"):
        load(None, ["env.options=*x"])
    shared = {"name": "x"}
    assert parse(write([shared, shared]), "config") == [shared, shared]


@pytest.mark.parametrize("text", ['model: "a\\ud83d"', 'env: {options: {"\\ud83d": 1}}'])
def test_half_a_character_is_refused(text):
    with pytest.raises(UserError, match=r"config run.yaml: not valid .*surrogates"):
        parse(text, "config run.yaml")


def test_a_library_that_makes_dates_text_for_the_whole_process_changes_nothing(monkeypatch):
    changed = {**yaml.SafeLoader.yaml_constructors, "tag:yaml.org,2002:timestamp": lambda *_: "x"}
    monkeypatch.setattr(yaml.SafeLoader, "yaml_constructors", changed)
    assert parse("day: 2024-02-29", "config") == {"day": date(2024, 2, 29)}
