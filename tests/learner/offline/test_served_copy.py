"""Training from a finished store: `r3l-learner train --offline`, killed and resumed."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from buffer.storage.store import Store
from buffer.tools import store_reads
from learner.cli import main
from learner.rank0 import Rank0
from r3l.config import dump, load
from tests.learner.fakes import steps_of

SETTINGS = (
    "learner.steps=6",
    "learner.lr=1e-3",
    "learner.groups_per_step=3",
    "learner.checkpoint_every=2",
    "algorithm.group_size=4",
    "algorithm.recall_count=1",
    "buffer.sampler=uniform",
    "buffer.sampler.reuse=2",
)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The learner handles signals; the tests' own handlers come back."""
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


def train(run: Path, model: Path, store: Path, *more: str, resume: bool = False) -> Any:
    run.mkdir(parents=True, exist_ok=True)
    config = run / "config.yaml"
    config.write_text(dump(load(None, [f"model={model}", *SETTINGS, *more])))
    command = ["train", "--config", str(config), "--run", str(run), "--offline", str(store)]
    return CliRunner().invoke(main, command + ["--resume"] * resume, catch_exceptions=False)


def learned(run: Path) -> list[Any]:
    """The groups of each step, and what was recalled into them."""
    with Store(run / "buffer", read_only=True) as store:
        draws = [store_reads.trained_draw(store, step) for step in range(1, 7)]
    return [
        ([group.group_id for group in draw.groups],
         [(one.into, one.group_id, one.trajectory.slot) for one in draw.recalled])
        for draw in draws
    ]  # fmt: skip


def test_a_store_is_trained_from_without_actors(tmp_path: Path, model: Path, store: Path) -> None:
    done = train(tmp_path / "run", model, store)
    assert done.exit_code == 0, done.output
    steps = steps_of(tmp_path / "run")
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[0]["learner/behaviour_kl"] != 0 and steps[0]["group/reward_mean"] > 0
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_a_killed_and_resumed_run_has_the_same_losses_and_recalls_the_same_attempts(
    tmp_path: Path, model: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train(whole, model, store).exit_code == 0
    finish = Rank0.finish_step

    def killed(self: Rank0, draw: Any, version: int, result: Any) -> None:
        finish(self, draw, version, result)
        if version == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Rank0, "finish_step", killed)
        assert train(cut, model, store).exit_code != 0
    assert train(cut, model, store, resume=True).exit_code == 0
    drawn = [learned(run) for run in (whole, cut)]
    assert drawn[0] == drawn[1] and any(recalled for _, recalled in drawn[0])
    losses = {line["step"]: line["learner/loss"] for line in steps_of(cut)}
    assert losses == {line["step"]: line["learner/loss"] for line in steps_of(whole)}


def test_a_run_ends_when_the_store_has_too_few_groups_left(
    tmp_path: Path, model: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = train(tmp_path / "run", model, store, "buffer.sampler.reuse=1")
    assert done.exit_code == 0 and [s["step"] for s in steps_of(tmp_path / "run")] == [1, 2, 3, 4]
    assert "step 5: too few groups are left" in done.output + capsys.readouterr().err
