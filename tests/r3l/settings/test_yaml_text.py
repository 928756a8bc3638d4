"""YAML of settings: what it stands for, and what is refused."""

from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

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
        "!!timestamp 2024-02-29",
        "!!int seven",
        "1" * 5000,
        "[" * 3000,
        "0x" + "f" * 9999,
    ],
)
def test_text_that_is_not_plain_yaml_is_refused_in_one_line(text):
    with pytest.raises(UserError, match=r"^config: not valid YAML ") as caught:
        parse(text, "config")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("!!bool yes", "'yes' is not a valid bool"), ("!!bool 1", "'1' is not a valid bool"),
        ("!!bool maybe", "'maybe' is not a valid bool"),
        ("!!null foo", "'foo' is not a valid null"),
        ("!!int 1_000", "'1_000' is not a valid int"), ("!!int 1.5", "'1.5' is not a valid int"),
        ("!!float '1e'", "'1e' is not a valid float"),
        ("!!float nan", "'nan' is not a valid float"),
        ("1e400", "1e400 is too large"), ("-1e999", "-1e999 is too large"),
        ("!!float 1e400", "1e400 is too large"),
    ],
)  # fmt: skip
def test_a_tag_that_does_not_fit_its_text_is_refused_and_so_is_a_number_too_large(text, reason):
    for whole in (f"x: {text}", f"x: [{text}]"):
        with pytest.raises(UserError, match=rf"^config: .*line 1, .*{reason}") as caught:
            parse(whole, "config")
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=reason):
        load(None, [f"env.options.x={text}"])


def test_a_tag_that_fits_its_text_changes_nothing():
    text = "{a: !!bool TRUE, b: !!null ~, c: !!int '7', d: !!float 1, e: !!float -.INF, f: !!null }"
    values = {"a": True, "b": None, "c": 7, "d": 1.0, "e": -float("inf"), "f": None}
    assert parse(text, "config") == values


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


def test_a_library_that_changes_pyyaml_for_the_whole_process_changes_nothing(monkeypatch):
    changed = {"tag:yaml.org,2002:int": lambda *_: "x", "tag:yaml.org,2002:str": lambda *_: "x"}
    monkeypatch.setattr(yaml.SafeLoader, "yaml_constructors", changed)
    monkeypatch.setattr(yaml.SafeLoader, "yaml_implicit_resolvers", {})
    assert parse("{day: 2024-02-29, n: 010}", "config") == {"day": "2024-02-29", "n": 10}


WRITTEN = {
    "010": 10, "0100": 100, "-08": -8, "+12": 12, "0x1F": 31, "0o17": 15, "1e5": 1e5, "1E-3": 1e-3,
    "12e03": 12e3, ".5": 0.5, "1.": 1.0, "-.5e+1": -5.0, ".inf": float("inf"),
    "-.INF": float("-inf"), "~": None, "Null": None, "": None, "true": True, "FALSE": False,
}  # fmt: skip
TEXT = (
    "1:30 12:30:00 4:10 190:20:30 no No NO yes on off y n 0b11 1_000 1__0 0o8 0x -0x1F 1e 1.2.3 "
    "2024-02-29 2024-02-29T10:00:00Z 99-99-99 = . + tRUE nuLL .Nan .iNF 0777x"
).split()
"""What YAML 1.1 or Python would take for a number, a truth or a date, and what looks like one."""


def test_a_value_is_read_as_yaml_1_2_says_in_a_file_and_on_the_command_line(tmp_path: Path):
    for text, value in {**WRITTEN, **{text: text for text in TEXT}}.items():
        read = parse(f"a: {text}\nb: [{text}]", "config")["a"]
        assert (read, type(read)) == (value, type(value)), text
        if text:
            of_line = load(None, [f"env.options.x={text}"]).env.options["x"]
            assert (of_line, type(of_line)) == (value, type(value)), text
    assert parse("a: .nan", "config")["a"] != parse("a: .nan", "config")["a"]


def plain_values() -> st.SearchStrategy:
    looks = st.text("0123456789abcdefoxeEInNaytrulsYTF:.+-_~=<> #'\"\\[]{}!&*,%@`|?\n", max_size=8)
    texts = st.one_of(looks, st.sampled_from([*WRITTEN, *TEXT, "<<", "<", "- a", "a: b"]))
    numbers = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.none())
    return st.recursive(
        texts | numbers,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    )


@given(plain_values())
def test_every_plain_value_that_is_written_is_read_back(value):
    read = parse(write(value), "config")
    assert repr(read) == repr(value)


def test_a_number_of_another_notation_is_refused_where_a_number_is_asked():
    for override in ("learner.steps=1:30", "seed=0b11", "learner.lr=1:30", "seed=2024-02-29"):
        with pytest.raises(UserError, match=r"must be a (whole )?number, not"):
            load(None, [override])
    assert load(None, ["seed=0x10", "learner.steps=1_000"]).learner.steps == 1000


@pytest.mark.parametrize("word", ["no", "yes", "on", "off", "Off", "y", "f", "'true'"])
def test_a_word_for_true_or_false_is_refused_with_what_to_write(word):
    for key in ("learner.keep_best", "algorithm.credit", "eval.exact"):
        with pytest.raises(UserError, match=rf"^config {key}: must be true or false, not "):
            load(None, [f"{key}={word}"])


@pytest.mark.parametrize("key", ["actor.engine.enforce_eager", "learner.deepspeed.a.b"])
def test_a_word_for_true_or_false_never_reaches_another_library(key):
    for word in ("no", "Yes", "ON", "off"):
        with pytest.raises(UserError, match=rf"^config {key[:9]}.*'{word}'; write true or false"):
            load(None, [f"{key}={word}"])
    load(None, [f"{key}=none"])


def test_a_merge_is_refused_and_keys_that_are_equal_are_repeated():
    for text, reason in (
        ("<<: {a: 1}", "<< is not read; write the settings themselves"),
        ("{1: a, 0x1: b}", "0x1 appears twice"),
        ("a: 1\n'a': 2", "a appears twice"),
        ("? [a]\n: 1", "a key must be one word"),
    ):
        with pytest.raises(UserError, match=f"^config: not valid YAML .*line .*{reason}"):
            parse(text, "config")
    assert parse("'<<': 1", "config") == {"<<": 1}
