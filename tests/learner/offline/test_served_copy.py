"""Training from a finished store: `r3l-learner train --offline`, killed and resumed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from buffer.storage.store import Store
from buffer.tools import store_reads
from learner.cli import main
from learner.loop import Training
from learner.offline.served_copy import check_texts
from r3l.errors import UserError
from r3l.models.model_folder import read_tokenizer
from r3l.records import Segment, SlotResult, Task
from r3l.run.config import dump, load
from r3l.views.tape import TapedCall, write_tape
from tests.buffer.fakes import Desk
from tests.learner.fakes import steps_of
from tests.learner.ranks import on_two_ranks

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


def command_of(run: Path, model: Path, store: Path, *more: str) -> list[str]:
    config = run.with_suffix(".yaml")
    config.write_text(dump(load(None, [f"model={model}", *SETTINGS, *more])))
    return ["train", "--config", str(config), "--run", str(run), "--offline", str(store)]


def train(run: Path, model: Path, store: Path, *more: str, resume: bool = False) -> Any:
    command = command_of(run, model, store, *more) + ["--resume"] * resume
    return CliRunner().invoke(main, command, catch_exceptions=False)


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
    assert re.findall("step ([1-6])/6  loss", done.stdout) == list("123456")


def by_agent(result: SlotResult) -> SlotResult:
    """A result that an agent played: with a tape, and with a second conversation."""
    one = result.trajectory
    if one is None:
        return result
    last = one.num_steps - 1
    second = Segment(
        token_ids=one.token_ids[::-1].copy(),
        logprobs=one.logprobs,
        step_spans=one.step_spans,
        step_versions=one.step_versions,
        step_newest_versions=one.step_newest_versions,
        start=last,
        after=np.full(one.num_steps, last, np.int32),
    )
    tape = write_tape([TapedCall("chat", "d", -1, ({"role": "user", "content": "hi"},))])
    return replace(
        result, trajectory=replace(one, extra=replace(one.extra, segments=(second,), tape=tape))
    )


def test_groups_that_agents_played_are_trained_offline(
    tmp_path: Path, model: Path, store: Path
) -> None:
    with Store(store, read_only=True) as source:
        groups = [store_reads.group(source, row["group"]) for row in store_reads.rows(source)]
    desk = Desk(tmp_path / "filled" / "buffer", max_staleness=99)
    desk.add([Task("t/0", "agent", 0)])
    for group in groups:
        lease = desk.lease(version=0, plan=group.plan)
        desk.put(lease.group_id, [by_agent(result) for result in group.results])
    desk.store.close()
    losses = []
    for name, filled in (("plain", store), ("agents", desk.folder)):
        done = train(tmp_path / name, model, filled, "algorithm.recall_count=0", "learner.steps=2")
        assert done.exit_code == 0, done.output
        losses.append([step["learner/loss"] for step in steps_of(tmp_path / name)])
    assert len(losses[1]) == 2 and losses[0] != losses[1]  # the second conversations count


def test_a_step_of_an_offline_run_is_replayed_with_the_settings_that_made_it(
    tmp_path: Path, model: Path, store: Path
) -> None:
    run = tmp_path / "run"
    assert train(run, model, store, "learner.steps=3").exit_code == 0
    assert train(run, model, store, "learner.lr=2e-3", resume=True).exit_code == 0
    for step in (3, 5):
        done = CliRunner().invoke(main, ["replay", str(run), str(step)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert "loss same, gradient norm same" in done.output


def run_command(command: list[str]) -> None:
    main(command, standalone_mode=False)


@pytest.mark.system
def test_two_ranks_have_the_losses_of_one(tmp_path: Path, model: Path, store: Path) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    assert train(alone, model, store, "learner.steps=2").exit_code == 0
    on_two_ranks(run_command, command_of(both, model, store, "learner.steps=2"))
    losses = [[line["learner/loss"] for line in steps_of(run)] for run in (alone, both)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and len(losses[1]) == 2


def test_a_killed_and_resumed_run_has_the_same_losses_and_recalls_the_same_attempts(
    tmp_path: Path, model: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train(whole, model, store).exit_code == 0
    finish = Training.finish_step

    def killed(self: Training, draw: Any, version: int, result: Any) -> None:
        finish(self, draw, version, result)
        if version == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Training, "finish_step", killed)
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


def test_a_store_of_another_tokenizer_is_refused(model: Path, store: Path) -> None:
    tokenizer = read_tokenizer(model, "model")
    opened = Store(store, read_only=True)
    group = store_reads.group(opened, "g0000000001")
    opened.close()
    check_texts(group, tokenizer, "model m")
    one = group.results[0].trajectory
    assert one is not None
    wrong = replace(one, actions=("something else", *one.actions[1:]))
    foreign = replace(group, results=(replace(group.results[0], trajectory=wrong),))
    with pytest.raises(UserError, match="the tokenizer of model m"):
        check_texts(foreign, tokenizer, "model m")
