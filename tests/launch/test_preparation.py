"""The order of the checks, and what --check answers."""

import fcntl
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from buffer.storage.store import Store
from envs.registry import make
from launch import checks
from launch.checks.plan_options import PlanOptions
from launch.cli import main
from launch.preparation import prepare, write_run_folder
from r3l.errors import UserError
from r3l.models.model_path import builtin_policy
from r3l.run.config import dump, load
from r3l.run.files.run_folder import RunFolder
from tests.launch.fakes import refused


def test_what_is_quick_to_check_is_checked_before_the_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.checks.of_model.model_path", lambda *_: pytest.fail("the model"))
    with monkeypatch.context() as patch:
        patch.setattr("launch.backends.backend.Backend.machines", lambda _: pytest.fail("machines"))
        assert "--learner 'gpu'" in refused("--run", str(tmp_path / "new"), "--learner", "gpu")
    (tmp_path / "config.yaml").write_text("seed: 7")
    with (tmp_path / ".lock").open("w") as lock, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert "free port" in refused("--run", str(tmp_path / "new"), "--buffer", busy)
        fcntl.flock(lock, fcntl.LOCK_EX)
        line = refused("--run", str(tmp_path), "--resume")
    assert "another r3l-launch" in line


def test_the_preset_of_the_demo_names_the_shipped_policy_in_its_own_world(run: Path) -> None:
    demo = ["--run", str(run), "--preset", "demo", "--check"]
    result = CliRunner().invoke(main, demo)
    assert result.exit_code == 0, result.output
    assert f"passed: workshop, r3l, {builtin_policy()}\n" in result.output
    assert "names no model" in refused(*demo, "--env", "keys")


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
    assert f"passed: gsm8k, r3l, {builtin_policy()}\n" in result.output
    assert not run.exists()


def test_a_check_refuses_a_store_that_another_process_serves_and_writes_nothing(run: Path) -> None:
    store = run / "buffer"
    with Store(store, map_gib=0.01):
        before = (store / "owner.lock").stat()
        line = refused("--run", run, "--check")
        assert (store / "owner.lock").stat().st_mtime_ns == before.st_mtime_ns
        planned = CliRunner().invoke(main, ["--run", str(run), "--dry-run"])
        assert planned.exit_code == 0, planned.output
    assert f"store {store}: is already served by process {os.getpid()};" in line
    assert CliRunner().invoke(main, ["--run", str(run), "--check"]).exit_code == 0
    assert [path.name for path in run.iterdir()] == ["buffer"]


def test_unreadable_evaluation_tasks_are_named_before_anything_starts(
    run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("math_verify")
    train = tmp_path / "train.jsonl"
    train.write_text('{"prompt": "1+1?", "answer": "2"}')
    data = (f"env.options.train={train}", "env.options.eval=/no/such.jsonl")
    line = refused("--run", run, "--env", "gsm8k", *data)
    assert "gsm8k.eval: /no/such.jsonl: cannot" in line and not run.exists()


def test_an_environment_that_the_shipped_policy_cannot_play_is_refused(run: Path) -> None:
    line = refused("--run", run, "env.others.keys={}")
    assert line.startswith("r3l-launch: env keys: the shipped policy")
    assert "warmup --env workshop --env keys " in line


OWN = """
from envs.base import SeededTasks
from r3l.rollout.env_interface import EnvSpec

class Door:
    spec = EnvSpec("door", "", max_steps=1, max_response_tokens=8)

    def __init__(self, file: str = "", word=""):
        self.word = open(file).read()

    def reset(self, *, seed, options=None):
        return f"say {self.word}", {}

    def step(self, action):
        return "", 1.0, True, False, {}

    def close(self):
        pass
"""


def test_a_resume_from_another_folder_reads_the_files_of_the_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, word in (("a", "sesame"), ("b", "other")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "own.py").write_text(OWN)
        (tmp_path / place / "word.txt").write_text(word)
    monkeypatch.chdir(tmp_path / "a")
    options = PlanOptions(tmp_path / "run")
    given = ["model=builtin", "env=own.py:Door", "env.options.file=word.txt"]
    with write_run_folder(prepare(load(None, given), options)):
        pass
    monkeypatch.chdir(tmp_path / "b")
    again = replace(options, resume=True)
    plan = prepare(load(RunFolder(options.run).own_config), again)
    assert plan.changed == () and plan.config.env.name == f"{tmp_path}/a/own.py:Door"
    assert "sesame" in make(plan.config.env.name, **plan.config.env.options).reset(seed=1)[0]
    with pytest.raises(
        UserError, match=r"changed setting \(env.name: .*/a/own.py:Door -> .*/b/own"
    ):
        prepare(load(None, given), again)


def test_another_run_of_the_same_name_is_refused(run: Path) -> None:
    run.mkdir()
    (run / "config.yaml").write_text(dump(load()))
    assert "seed" in refused("--run", run, "--resume", "seed=8")


def test_every_check_is_called() -> None:
    assert checks.__file__
    folder = Path(checks.__file__).parent
    code = "".join(path.read_text() for path in folder.parent.rglob("*.py"))
    names = re.findall(r"def (check_\w+)", "".join(p.read_text() for p in folder.glob("*.py")))
    assert len(names) > 10
    assert [name for name in names if code.count(f"{name}(") < 2] == []


def test_a_users_algorithm_is_rehearsed_before_the_model_is_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.checks.of_model.model_path", lambda *_: pytest.fail("the model"))
    file = tmp_path / "mine.py"
    file.write_text(
        "from r3l.algorithms.algorithm import Algorithm\n"
        "class Mine(Algorithm):\n"
        "    async def explore(self, x):\n"
        "        await x.play(0)\n"
    )
    for option in ("--check", "--dry-run"):
        line = refused("--run", run, option, f"algorithm={file}:Mine")
        assert f"algorithm {file}:Mine: explore, in a group of mixed attempts: " in line
        assert "without a result for slot 1; call play, retry, skip or fail" in line
    assert not run.exists()
