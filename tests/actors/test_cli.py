"""`r3l-actor`: refusals (one line, exit code 2, no engine started), names, and dead engines."""

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from actors.cli import main
from actors.engine import VLLMPolicy
from buffer import AsyncBufferClient, BufferClient
from launch.checks.presets import DEMO
from r3l.errors import EngineDead
from r3l.models.model_path import builtin_policy
from r3l.run.config import dump, load
from tests.buffer.fakes import Served


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


def test_a_model_that_this_machine_lacks_is_named(tmp_path: Path) -> None:
    assert "no config.json in /no/such/model" in refused(tmp_path, "model=/no/such/model")
    model = tmp_path / "model"
    shutil.copytree(builtin_policy(), model)
    (model / "model.safetensors").unlink()
    assert "copy the whole folder" in refused(tmp_path, f"model={model}")


def test_a_reserved_engine_argument_a_long_name_and_bad_endpoints_are_named(tmp_path: Path) -> None:
    assert "leave it out" in refused(tmp_path, "actor.engine={worker_extension_cls: x}")
    assert "at most 190" in refused(tmp_path, arguments=("--name", "x" * 201))
    assert "cannot be printed" in refused(tmp_path, arguments=("--name", "a\nactor-1 died"))
    for option in ("--buffer", "--weights"):
        assert "65535" in refused(tmp_path, arguments=(option, "tcp://127.0.0.1:65536"))


class Reports:
    """An actor that reports one metric, and leaves."""

    def __init__(self, name: str, policy: object, client: AsyncBufferClient, *_: object) -> None:
        self.name, self.client, self.stop = name, client, asyncio.Event()
        self.results = 0

    async def run(self) -> None:
        await self.client.renew([], self.name, {"generated_tokens": 5.0})


def test_two_actors_of_one_name_are_told_apart_by_the_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "actors.engine.VLLMPolicy.start", lambda *_, **__: SimpleNamespace(close=int)
    )
    monkeypatch.setattr("actors.actor.Actor", Reports)
    config = tmp_path / "config.yaml"
    config.write_text(dump(load(None)))
    served = Served(tmp_path / "store", "tcp://127.0.0.1:0")
    command = ["--config", str(config), "--buffer", served.endpoint, "--name", "twin"]
    try:
        for _ in range(2):
            done = CliRunner().invoke(main, [*command, "--weights", "tcp://127.0.0.1:2"])
            assert done.exit_code == 0, done.output
        with BufferClient(served.endpoint) as client:
            told = client.stats().actors
    finally:
        served.kill()
    assert len(told) == 2 and all(name.startswith("twin.") for name in told)
    assert [metrics["generated_tokens"] for metrics in told.values()] == [5.0, 5.0]


def test_three_dead_engines_in_a_row_end_the_actor_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    def no_engine(*arguments: Any, **more: Any) -> None:
        starts.append(arguments)
        raise EngineDead("out of memory on device 3")

    monkeypatch.setattr(VLLMPolicy, "start", no_engine)
    config = tmp_path / "config.yaml"
    config.write_text(dump(load(DEMO, [f"model={builtin_policy()}"])))
    nobody = "tcp://127.0.0.1:9"
    arguments = ["--config", str(config), "--buffer", nobody, "--weights", nobody]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1 and len(starts) == 3
    assert "failed 3 times" in result.output and "out of memory on device 3" in result.output
