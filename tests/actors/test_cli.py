"""`r3l-actor` refuses what it cannot do: one line, exit code 2, and no engine is started."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from actors.cli import main
from envs.builtin import builtin_policy
from r3l.config import dump, load


def refused(tmp_path: Path, *settings: str, arguments: tuple[str, ...] = ()) -> str:
    config = tmp_path / "config.yaml"
    config.write_text(dump(load(None, settings)))
    command = ["--config", str(config), "--buffer", "tcp://127.0.0.1:1"]
    done = CliRunner().invoke(main, [*command, "--weights", "tcp://127.0.0.1:2", *arguments])
    assert done.exit_code == 2, done.output
    [line] = [x for x in done.output.splitlines() if x.startswith("r3l-actor: ")]
    return line


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R3L_STARTER_PID", "")  # which the command sets
    monkeypatch.setattr("actors.engine.VLLMPolicy.start", lambda *_, **__: pytest.fail("started"))


def test_a_model_that_another_machine_has_and_this_one_lacks_is_named(tmp_path: Path) -> None:
    assert "no config.json in /no/such/model" in refused(tmp_path, "model=/no/such/model")
    model = tmp_path / "model"
    shutil.copytree(builtin_policy(), model)
    (model / "model.safetensors").unlink()
    assert "was all of it copied?" in refused(tmp_path, f"model={model}")


def test_an_engine_argument_of_ours_a_long_name_and_bad_endpoints_are_named(tmp_path: Path) -> None:
    assert "leave it out" in refused(tmp_path, "actor.engine={worker_extension_cls: x}")
    assert "at most 200" in refused(tmp_path, arguments=("--name", "x" * 201))
    for option in ("--buffer", "--weights"):
        assert "65535" in refused(tmp_path, arguments=(option, "tcp://127.0.0.1:65536"))
