"""Settings that name what does not exist are refused in one line."""

from pathlib import Path

import pytest

from r3l.config import dump, load
from tests.launch.fakes import refused


def test_unreadable_evaluation_tasks_are_named_before_anything_starts(
    run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("math_verify")
    train = tmp_path / "train.jsonl"
    train.write_text('{"prompt": "1+1?", "answer": "2"}')
    data = (f"env.options.train={train}", "env.options.eval=/no/such.jsonl")
    line = refused("--run", run, "--env", "gsm8k", *data)
    assert "gsm8k.eval: /no/such.jsonl: cannot be read" in line and not run.exists()


def test_an_environment_that_the_shipped_policy_cannot_play_is_refused(run: Path) -> None:
    line = refused("--run", run, "env.others.keys={}")
    assert line.startswith("r3l-launch: env keys: the shipped policy")
    assert "warmup --env workshop --env keys --out runs/warm" in line


def test_another_run_of_the_same_name_is_refused(run: Path) -> None:
    run.mkdir()
    (run / "config.yaml").write_text(dump(load()))
    assert "seed" in refused("--run", run, "--resume", "seed=8")
