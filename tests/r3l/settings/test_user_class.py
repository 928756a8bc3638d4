"""Classes by registry name or by path."""

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
