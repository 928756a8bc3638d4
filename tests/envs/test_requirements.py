"""What is missing is one line with the command that installs it."""

import sys

import pytest

from envs import registry, requirements
from r3l.errors import UserError
from tests.envs.adapters.shop import checkout


def refusal(name, **options):
    with pytest.raises(UserError) as caught:
        registry.make(name, **options)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("gym:FrozenLake-v1", "gymnasium", "gym"),
        ("textworld:cooking", "textworld", "textworld"),
        ("alfworld", "textworld", "alfworld"),
        ("scienceworld", "scienceworld", "scienceworld"),
        ("webshop", "bm25s", "webshop"),
    ],
)
def test_every_adapter_names_the_package_it_misses_and_its_extra(
    monkeypatch, tmp_path, name, module, extra
):
    monkeypatch.setenv("WEBSHOP", str(checkout(tmp_path / "webshop")))
    for loaded in [m for m in sys.modules if m.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    line = refusal(name)
    assert f"package {module}" in line and f"pip install 'r3l[{extra}]'" in line


def test_missing_java_is_refused_with_its_install_command(monkeypatch):
    pytest.importorskip("scienceworld", reason="pip install 'r3l[scienceworld]'")
    monkeypatch.setenv("PATH", "/nowhere")
    assert "apt-get install default-jre-headless" in refusal("scienceworld")


def test_a_missing_data_folder_is_refused_with_the_download_command(monkeypatch, tmp_path):
    pytest.importorskip("alfworld", reason="pip install 'r3l[alfworld]'")
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert "alfworld-download" in refusal("alfworld")
    line = refusal("alfworld", data=str(tmp_path))
    assert str(tmp_path) in line and "does not contain json_2.1.1" in line


def test_alfworld_data_without_training_games_is_refused_with_the_missing_folder(tmp_path):
    (tmp_path / "json_2.1.1" / "valid_seen").mkdir(parents=True)
    with pytest.raises(UserError, match=r"json_2\.1\.1/train; .*alfworld-download"):
        registry.tasks("alfworld", {"data": str(tmp_path)}, "train", 1)


def test_a_missing_package_is_one_line_with_the_install_command():
    with pytest.raises(UserError, match=r"nosuch; .*'r3l\[zork\]'"):
        requirements.package("zork", "nosuch.part", "zork")
