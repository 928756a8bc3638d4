"""Settings by their full names."""

from r3l.settings.flat import flat_settings


def test_nested_settings_are_named_in_full_and_an_empty_section_is_a_value() -> None:
    tree = {"seed": 1, "env": {"name": "keys", "options": {}, "others": {"a": {"b": None}}}}
    assert flat_settings(tree) == {
        "seed": 1,
        "env.name": "keys",
        "env.options": {},
        "env.others.a.b": None,
    }
