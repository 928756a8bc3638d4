"""Classes by registry name or by path."""

import os
import sys

import pytest

from r3l.errors import UserError
from r3l.settings import user_class


class Rule:
    """A base for rules."""


class Known(Rule):
    """A registered rule."""


def find(name):
    return user_class.find("some.rule", name, {"known": Known}, Rule)


def test_a_class_is_found_by_its_registry_name():
    assert find("known") is Known


def test_a_class_of_the_users_own_is_found_by_path_and_imported_once(tmp_path):
    file = tmp_path / "my_rule.py"
    file.write_text(
        "from tests.r3l.settings.test_user_class import Rule\nclass Mine(Rule):\n    pass\n"
    )
    found = find(f"{file}:Mine")
    assert issubclass(found, Rule) and found is find(f"{file}:Mine")


def test_a_file_edited_within_a_second_is_read_anew_by_the_next_process(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "my_rule.py"
    for value in (1, 2):  # texts of one length
        file.write_text(f"VALUE = {value}\n")
        os.utime(file, (1e9, 1e9))
        assert value == user_class.module("some.rule", file).VALUE
        del sys.modules[f"{user_class.PREFIX}my_rule"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("knwon", r"some.rule 'knwon': unknown \(did you mean known\?\)"),
        ("nowhere.py:Mine", "some.rule nowhere.py:Mine: .*not exist"),
        ("{}/other_rule.py:Missing", "'Missing' .*not a subclass of Rule"),
        ("{}/other_rule.py:number", "'number' .*not a subclass of Rule"),
        ("{}/ending_rule.py:Mine", "importing it raised End: now"),
        ("{}/broken_rule.py:Mine", "broken_rule.py:Mine: .*ZeroDivisionError"),
        ("{}/hidden_rule.py:Mine", r"'envs.mine' \(envs is .*/envs; .* needs another name\)"),
    ],
)
def test_what_cannot_be_found_is_one_line_that_names_the_setting(tmp_path, name, said):
    (tmp_path / "other_rule.py").write_text("number = 1\n")
    (tmp_path / "broken_rule.py").write_text("1 / 0\n")
    (tmp_path / "hidden_rule.py").write_text("import envs.mine\n")
    (tmp_path / "ending_rule.py").write_text("class End(BaseException): pass\nraise End('now')\n")
    with pytest.raises(UserError, match=said) as caught:
        find(name.format(tmp_path))
    assert "\n" not in str(caught.value)


BROKEN = {
    "1 / 0": "ZeroDivisionError: .*",
    "import no_such_module": "ModuleNotFoundError: .*",
    "from json import no_such_name": "ImportError: .*",
    "import json; json.loads('{\\'a')": r"JSONDecodeError: .*; the text begins \"\{'a\" ",
    "int('x')": "ValueError: .*",
    "raise SystemExit": "SystemExit: ",
    "EnvSpec('mine', '')": "TypeError: .*max_steps.*",
    "EnvSpec('mine', '', 3, success_threshold=0)": "env mine: success_threshold is 0; .*",
    "EnvSpec('mine', '', 3, prompts={'x': object()})": "env mine: its spec: .*",
}


@pytest.mark.parametrize("code", BROKEN)
def test_what_a_users_code_raises_is_told_with_its_file_and_line(tmp_path, code):
    file = tmp_path / "mine.py"
    header = "from r3l.rollout.env_interface import EnvSpec\n\n\ndef made():\n"
    file.write_text(f"{header}    {code}\n\n\nmade()\n")
    with pytest.raises(UserError, match=BROKEN[code]) as caught:
        user_class.module("env mine.py:Mine", file)
    assert str(caught.value).endswith(f" ({file}:5)")
    assert str(caught.value).count(str(file)) == 1


def test_a_syntax_error_is_told_with_the_line_of_the_file_that_has_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "r3l_test_broken.py").write_text("x = 1\ny = (\n")
    (tmp_path / "mine.py").write_text("import r3l_test_broken\n")
    with pytest.raises(
        UserError, match=r"SyntaxError: .* was never closed \(.*r3l_test_broken.py:2"
    ):
        user_class.module("env", tmp_path / "mine.py")


def test_a_line_of_a_file_that_was_edited_meanwhile_says_so(tmp_path):
    file = tmp_path / "edited_rule.py"
    base = "from tests.r3l.settings.test_user_class import Rule\n"
    file.write_text(f"{base}class Mine(Rule):\n    def do(self):\n        return 1 / 0\n")
    rule = find(f"{file}:Mine")()
    for edited, end in ((False, ""), (True, ", as it was before it was edited")):
        if edited:
            file.write_text(f"# a line more\n{file.read_text()}")
        with pytest.raises(UserError) as caught, user_class.errors_named("mine"):
            rule.do()
        assert str(caught.value).endswith(f" ({file}:4{end})")
