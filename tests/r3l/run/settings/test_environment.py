"""Several environments in one run."""

import pytest

from r3l.errors import UserError
from r3l.run.config import dump, load


def test_each_environment_has_its_options_and_the_common_settings() -> None:
    env = load(None, ["env=keys", "env.options.locks=3", "env.step_s=9",
                      'env.others={"workshop": {"stations": 2}}']).env  # fmt: skip
    first, second = env.each()
    assert (first.name, first.options, first.others) == ("keys", {"locks": 3}, {})
    assert (second.name, second.options, second.step_s) == ("workshop", {"stations": 2}, 9)
    assert env.title == "keys + workshop" and first.each() == (first,)


def test_they_are_written_and_read_again(tmp_path) -> None:
    config = load(None, ["env.others.keys={}"])
    file = tmp_path / "config.yaml"
    file.write_text(dump(config))
    assert load(file).env == config.env


def test_an_environment_joins_a_run_once() -> None:
    with pytest.raises(UserError, match=r"^config env.others: workshop .*env.name"):
        load(None, ["env.others.workshop={}"])


def test_another_environment_leaves_the_others_out(tmp_path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("env: {name: workshop, others: {keys: {}}}")
    assert load(file, ["env=countdown"]).env.names == ("countdown",)


def test_one_of_the_others_is_played_alone_with_its_own_options(tmp_path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("env: {name: workshop, options: {tools: 5}, others: {keys: {locks: 4}}}")
    alone = load(file, ["env=keys"]).env
    assert (alone.names, alone.options) == (("keys",), {"locks": 4})
