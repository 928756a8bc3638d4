"""The order of the checks, and what --check answers."""

import fcntl
import inspect
import socket
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from envs.builtin.policy import builtin_policy
from launch import plan
from launch.cli import main
from tests.launch.fakes import refused


def test_what_is_quick_to_check_is_checked_before_the_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.checks.draft.model_path", lambda *_: pytest.fail("the model"))
    (tmp_path / "config.yaml").write_text("seed: 7")
    with (tmp_path / ".lock").open("w") as lock, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert "free port" in refused("--run", str(tmp_path / "new"), "--buffer", busy)
        fcntl.flock(lock, fcntl.LOCK_EX)
        line = refused("--run", str(tmp_path), "--resume")
    assert "another r3l-launch is using it" in line


def test_every_check_is_in_the_list_once() -> None:
    checks = [each for each in plan.CHECKS if inspect.isfunction(each)]
    modules = [import_module(name) for name in sorted({each.__module__ for each in checks})]
    defined = [
        function
        for module in modules
        for name, function in vars(module).items()
        if name.startswith("check_")
        and function.__module__ == module.__name__
        and list(inspect.signature(function).parameters) == ["draft"]
    ]
    assert sorted(map(str, defined)) == sorted(map(str, checks))


def test_a_check_says_what_is_missing_and_starts_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ALFWORLD_DATA", "WEBSHOP"):
        monkeypatch.delenv(name, raising=False)
    for name in ("alfworld", "webshop"):
        line = refused("--run", run, "--preset", f"paper-{name}", "--model", "builtin", "--check")
        assert line.startswith(f"r3l-launch: env {name}: needs "), "a package, or the data"
    pytest.importorskip("math_verify")
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"question": "1+1?", "answer": "#### 2"}')
    gsm8k = ["--run", str(run), "--preset", "paper-gsm8k", "--check"]
    gsm8k += [f"env.options.{split}={problems}" for split in ("train", "eval")]
    assert "names no model" in refused(*gsm8k)
    assert "/no/such/model" in refused(*gsm8k, "--model", "/no/such/model")
    result = CliRunner().invoke(main, [*gsm8k, "--model", "builtin"])
    assert result.exit_code == 0, result.output
    assert f"all checks passed: gsm8k, r3l, {builtin_policy()}\n" in result.output
    assert not run.exists()
