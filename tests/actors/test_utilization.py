"""Engines that do not live, and how many attempts keep one busy."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from actors import cli
from actors.engine import VLLMPolicy
from actors.engine_log import EngineLog
from actors.utilization import Idleness, Occupancy
from envs.builtin.policy import builtin_policy
from launch.plan import DEMO
from r3l import config as configuration
from r3l.errors import EngineDead

SAY = [sys.executable, "-c", "print('out of memory on device 3', flush=True)"]


def test_three_engines_that_die_in_a_row_end_the_actor_with_their_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    def no_engine(*arguments: Any, **more: Any) -> None:
        starts.append(subprocess.run(SAY, check=True))
        raise EngineDead("the engine did not start")

    monkeypatch.setattr(VLLMPolicy, "start", no_engine)
    config = tmp_path / "config.yaml"
    config.write_text(configuration.dump(configuration.load(DEMO, [f"model={builtin_policy()}"])))
    nobody = "tcp://127.0.0.1:9"
    arguments = ["--config", str(config), "--buffer", nobody, "--weights", nobody]
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 1 and len(starts) == 3
    assert "the engine failed 3 times in a row" in result.output
    assert "out of memory on device 3" in result.output


@pytest.mark.parametrize(
    ("buffer", "weights", "named"),
    [
        ("nonsense", "tcp://127.0.0.1:9", "buffer 'nonsense'"),
        ("tcp://127.0.0.1:9", "tcp://127.0.0.1", "weights 'tcp://127.0.0.1'"),
    ],
)
def test_an_address_that_is_none_ends_the_actor_before_it_starts_an_engine(
    buffer: str, weights: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VLLMPolicy, "start", lambda *_, **__: pytest.fail("it was started"))
    config = tmp_path / "config.yaml"
    config.write_text(configuration.dump(configuration.load(DEMO, [f"model={builtin_policy()}"])))
    arguments = ["--config", str(config), "--buffer", buffer, "--weights", weights]
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 2
    assert f"r3l-actor: {named}: must look like tcp://HOST:PORT" in result.output


def test_the_log_of_an_engine_is_remembered_after_its_start_too() -> None:
    log = EngineLog()
    with log.captured():
        code = "import time; print('early', flush=True); time.sleep(0.3); print('late', flush=True)"
        engine = subprocess.Popen([sys.executable, "-c", code])
    subprocess.run(["echo", "not the engine's"], check=True)
    engine.wait()
    log.join()
    assert log.last_lines() == ["early", "late"]


def filled(target: int, group: int, share: float) -> tuple[int, float]:
    """(live attempts, requests running) after a minute of an environment in which an attempt is
    a request for `share` of the time."""
    occupancy, live = Occupancy(target), 0
    for _ in range(600):
        if occupancy.admits(live, group):
            live += group
        occupancy.observe(round(live * share), live)
    return live, live * share


def test_a_quick_environment_takes_as_many_attempts_as_requests() -> None:
    live, running = filled(target=48, group=4, share=1.0)
    assert live == running == 48


def test_a_slow_environment_takes_more_attempts_to_keep_the_engine_busy() -> None:
    live, running = filled(target=48, group=4, share=0.5)
    assert live > 90 and 44 <= running <= 48


def test_attempts_stay_bounded_however_slow_the_environment_is() -> None:
    live, _ = filled(target=48, group=4, share=0.0)
    assert live <= 8 * 48


def test_a_group_larger_than_the_target_is_still_begun() -> None:
    assert filled(target=2, group=4, share=1.0)[0] == 4


def test_only_waiting_for_a_lease_while_requests_are_missing_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("actors.utilization.time.monotonic", lambda: now)
    idle = Idleness()
    idle.observe(1.0)
    now = 1.0  # a second in which everything is missing, but no lease is waited for
    with idle:
        idle.observe(0.5)
        now = 3.0
        idle.observe(0.0)
        now = 4.0
    assert idle.share() == pytest.approx(0.25)
    assert idle.share() == 0.0
