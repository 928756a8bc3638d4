"""`r3l-eval` killed without warning: it continues where it was, and ends with the results of an
evaluation that was left alone. And it plays what the evaluation of a run's first weights played."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


ONE_STEP = (
    "env.options={stations: 1, steps: 1}", "eval.tasks=12", "eval.every=0", "eval.exact=true",
    "eval.temperatures=[1,0]", "actor.max_model_len=1024", "learner.steps=1",
    "learner.groups_per_step=2",
    f"actor.engine={{kv_cache_memory_bytes: {128 << 20}, enforce_eager: true}}",
)  # fmt: skip


def started(run: Path, *settings: str) -> None:
    """Makes a run of one step."""
    command = [sys.executable, "-m", "launch.cli", "--run", str(run), *ONE_STEP, *settings]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def said(folder: Path) -> list[tuple[Any, ...]]:
    """What was said and earned at each task, and the exact probability of its answers, rounded."""
    found = []
    for line in map(json.loads, lines(folder)):
        exact = line["scores"].get("exact")
        words = [step["action"] for step in line["steps"]]
        found.append((line["task_id"], line["reward"], words, exact and round(exact, 4)))
    return found


@pytest.mark.nightly  # the rule of the seeds by day: tests/actors/test_explored_groups.py
@pytest.mark.timeout(900)
def test_runs_whose_groups_are_numbered_differently_and_the_command_play_the_same(
    tmp_path: Path,
) -> None:
    """The weights are those that the runs began with, which are the shipped ones."""
    started(tmp_path / "one")
    started(tmp_path / "two", "algorithm=grpo", "learner.groups_per_step=6", "env.train_tasks=9")
    first, second = (tmp_path / name / "evaluations" / "step-000000" for name in ("one", "two"))
    alone = tmp_path / "alone"
    command = [sys.executable, "-m", "launch.eval_cli", "--tasks", "12", "--out", str(alone)]
    settings = [word for word in ONE_STEP if word.startswith(("env.", "eval.", "actor."))]
    subprocess.run([*command, "--json", *settings], check=True, cwd=ROOT)
    for part in ("", "temperature-0"):
        expected = said(first / part)
        assert len(expected) == 12 and said(second / part) == expected
        assert said(alone / part) == expected
    assert all(exact is not None and 0 < exact < 1 for *_, exact in said(first))
    assert len({tuple(words) for _, _, words, _ in said(first)}) > 3
