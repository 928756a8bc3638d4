"""The policy that ships with the package, and how a model folder is named."""

from pathlib import Path

import pytest

from r3l.errors import UserError
from r3l.models.model_folder import check_model_folder, read_tokenizer
from r3l.models.model_path import builtin_policy, model_path, shipped_tokenizer


def test_the_shipped_policy_is_a_whole_model_folder():
    check_model_folder(builtin_policy(), "--model builtin")


def test_a_model_is_named_by_a_path_or_as_builtin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()  # otherwise it would be a name of the hub
    monkeypatch.setenv("HOME", "/home/somebody")
    assert model_path("builtin") == builtin_policy()
    assert model_path("models/mine") == tmp_path / "models" / "mine"
    assert model_path("~/mine") == Path("/home/somebody/mine")
    with pytest.raises(UserError, match="not a valid path"):
        model_path("x" * 300)


def test_the_shipped_tokenizer_is_the_one_that_actors_read():
    quick, usual = shipped_tokenizer(), read_tokenizer(builtin_policy(), "builtin")
    assert type(quick) is type(usual) and quick.get_vocab() == usual.get_vocab()
    assert quick.chat_template == usual.chat_template and quick.eos_token == usual.eos_token
