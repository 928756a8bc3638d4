"""How an action is found in what a model answers."""

import pytest

from envs.adapters.action_tags import action_in, text_in


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("<action>open door</action>", "open door"),
        ("I think.\n<action> open\n door </action> Good.", "open door"),
        ("<action>a</action> no, <action>b</action>", "b"),
        ("thinking <action>open door", "open door"),
        ("open door", "open door"),
        ("  open   door \n", "open door"),
        ("I should\nopen the door", None),
        ("<action></action>", None),
        ("<action>a" + " " * 500_000 + "b", "a b"),  # a search that backtracks takes hours
        ("<action>a<action>b</action>", "b"),
        ("", None),
    ],
)
def test_the_last_tagged_action_counts_or_else_the_only_line(response, action):
    assert action_in(response) == action


def test_the_text_of_an_action_keeps_its_lines():
    code = "for n in range(2):\n    print(n)\n\nprint('a  b')"
    assert text_in(f"I print.\n<action>\n{code}\n</action>") == code
    assert text_in(" a  b\n") == "a  b"
    assert text_in("a\nb") is text_in("<action> </action>") is text_in("") is None
