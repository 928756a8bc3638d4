"""The number of a model's tokens, from its folder."""

import json

import pytest

from r3l.models.vocabulary import vocabulary


@pytest.mark.parametrize("settings", [{"vocab_size": 77}, {"text_config": {"vocab_size": 77}}])
def test_the_vocabulary_is_read_from_the_models_folder(tmp_path, settings):
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert vocabulary(str(tmp_path)) == 77


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"vocab_size": "many"}', '{"vocab_size": 0}'])
def test_without_a_readable_folder_it_is_unknown(tmp_path, text):
    assert vocabulary(str(tmp_path)) is None
    (tmp_path / "config.json").write_text(text)
    assert vocabulary(str(tmp_path)) is None


def test_the_shipped_policy_has_one():
    assert vocabulary("builtin") > 100
