"""`r3l-eval` killed without warning: it continues where it was, and ends with the results of an
evaluation that was left alone."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
ROOT = Path(__file__).parent.parent.parent
TASKS = 20


def evaluate(folder: Path) -> subprocess.Popen[str]:
    # Compiling would take longer than all the rest.
    engine = f"{{kv_cache_memory_bytes: {128 << 20}, enforce_eager: true}}"
    settings = ["eval.temperature=0", "actor.max_model_len=1024", f"actor.engine={engine}"]
    command = [sys.executable, "-m", "launch.eval_cli", "--out", str(folder), "--json"]
    return subprocess.Popen(
        [*command, "--tasks", str(TASKS), "--at-once", "2", *settings],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def lines(folder: Path) -> list[str]:
    file = folder / "results.jsonl"
    return sorted(file.read_text().splitlines()) if file.exists() else []


def test_a_killed_evaluation_goes_on_and_ends_like_an_unbroken_one(tmp_path: Path) -> None:
    whole = evaluate(tmp_path / "whole")
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output
    found = json.loads(output)["all"]
    assert found["tasks"] == TASKS and found["failed"] == {}

    cut = evaluate(tmp_path / "cut")
    while len(lines(tmp_path / "cut")) < 5:
        assert cut.poll() is None
        time.sleep(0.01)
    cut.kill()
    cut.communicate()
    kept = lines(tmp_path / "cut")
    assert 5 <= len(kept) < TASKS

    resumed = evaluate(tmp_path / "cut")
    again, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0 and json.loads(again) == json.loads(output)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    assert set(kept) <= set(lines(tmp_path / "cut"))
