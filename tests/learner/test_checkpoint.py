"""Checkpoints that are damaged, half-written or left in the middle: the one before is taken."""

import json
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from learner import checkpoint
from learner.checkpoint import Checkpoints, RunState
from learner.checkpoint_command import CheckpointCommand
from learner.step import deepspeed_trainer, optimizer_state, tensor_file
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from r3l.errors import UserError
from r3l.files import checksums, whole_file
from r3l.files.checksums import with_checksum, without_checksum
from r3l.files.whole_file import read_json
from r3l.models.model_folder import CHECKSUMS, check_checksums
from r3l.models.model_path import builtin_policy
from r3l.run.config import load
from r3l.training.measures import processor
from tests.learner.step.faulty import Silent, saved
from tests.r3l.files.made import flips
from tests.r3l.training.fakes import tiny_folder


class Killed(BaseException):
    """Stands for kill -9: nothing between the call and the test cleans up."""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> DeepSpeedTrainer:
    config = load(None, ["algorithm.group_size=4"])
    model = tiny_folder(tmp_path_factory.mktemp("model"))
    return DeepSpeedTrainer(model, config.learner)


@pytest.fixture(scope="module")
def two(trainer: DeepSpeedTrainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    for version in (3, 6):
        state = RunState(version, groups=(f"g{version}",))
        saved(trainer, folder, state, keep=2)
    return folder


@pytest.fixture
def folder(two: Path, tmp_path: Path) -> Path:
    """Whole checkpoints of versions 3 and 6."""
    return Path(shutil.copytree(two, tmp_path / "checkpoints"))


def test_a_folder_that_the_tokenizer_saves_is_part_of_a_checkpoint(
    trainer: DeepSpeedTrainer, tmp_path: Path
) -> None:
    class Templates:
        def save_pretrained(self, folder: Path) -> None:
            (folder / "additional_chat_templates").mkdir()
            (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ m }}")

    saving = checkpoint.Checkpoints(trainer, tmp_path / "checkpoints", Templates(), keep=1)
    saving.save(RunState(1))
    saving.close()
    made = tmp_path / "checkpoints" / "step-000001"
    assert checkpoint.latest(tmp_path / "checkpoints", thorough=True) == made
    (made / "additional_chat_templates" / "tool_use.jinja").write_text("{{ n }}")
    assert checkpoint.latest(tmp_path / "checkpoints") == made  # of the same size
    assert checkpoint.latest(tmp_path / "checkpoints", thorough=True) is None


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


@pytest.mark.parametrize("harm", [truncated, Path.unlink])
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_checkpoint_with_a_damaged_or_missing_file_is_skipped_and_the_file_named(
    folder: Path, file: str, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    assert checkpoint.latest(folder) == folder / "step-000006" and not caplog.records
    harm(folder / "step-000006" / file)
    assert checkpoint.latest(folder) == folder / "step-000003"
    [said] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "step-000006 is passed over" in said.getMessage() and file in said.getMessage()


def test_no_flipped_bit_of_any_file_of_a_checkpoint_goes_unseen(folder: Path) -> None:
    newest, names = folder / "step-000006", set[str]()
    state = read_json(newest / "state.json", "", dict)
    for path in sorted(newest.iterdir()):
        whole, unseen = path.read_bytes(), 0
        for content in flips(whole, few=15):
            path.write_bytes(content)
            found = checkpoint.latest(folder, thorough=True) == newest
            # A space of the JSON text may change without its value.
            unseen += found and (path.name != "state.json" or read_json(path, "", dict) != state)
        path.write_bytes(whole)
        assert unseen == 0, path.name
        names.add(path.name)
    assert names >= {"config.json", "model.safetensors", "optimizer.safetensors"}


def test_no_flipped_bit_of_any_file_of_a_saved_model_goes_unseen(
    trainer: DeepSpeedTrainer, tmp_path: Path
) -> None:
    class Vocabulary:
        def save_pretrained(self, folder: Path) -> None:
            shutil.copy(builtin_policy() / "tokenizer.json", folder)

    assert checkpoint.save_model(trainer, tmp_path / "model", Vocabulary(), 4)
    model, known = tmp_path / "model", read_json(tmp_path / "model" / CHECKSUMS, "", dict)
    check_checksums(model, "model mine")
    assert known["step"] == 4
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= known["files"].keys()
    for path in sorted(model.iterdir()):
        whole = path.read_bytes()
        for content in flips(whole, few=15):
            path.write_bytes(content)
            try:
                check_checksums(model, "model mine")
            except UserError as error:
                assert path.name in str(error) and "copy it again" in str(error)
            else:  # a space of the JSON text may change without its value
                assert path.name == CHECKSUMS and read_json(path, "", dict) == known
        path.write_bytes(whole)
    (model / "evaluation.json").write_text("written later")
    check_checksums(model, "model mine")


def test_a_checkpoint_of_another_schema_is_refused_by_its_schema_and_not_called_damaged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = folder / "step-000006" / "state.json"
    other = without_checksum(json.loads(state.read_bytes())) | {"schema": 4, "files": {"a": 3}}
    state.write_text(json.dumps(with_checksum(other)))
    newest = checkpoint.latest(folder, thorough=True)
    assert newest == folder / "step-000006" and not caplog.records
    with pytest.raises(UserError, match="has schema 4, "):
        checkpoint.check_resumable(newest, load().learner, dtype="torch.float32", model_digest="")


def test_a_slow_disk_is_no_hang_while_checksums_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = list[str]()
    monkeypatch.setattr(checkpoint, "heartbeat", beats.append)
    monkeypatch.setattr(checksums, "BLOCK", 1 << 10)
    assert checkpoint.latest(folder, thorough=True) == folder / "step-000006"
    size = (folder / "step-000006" / "model.safetensors").stat().st_size
    assert len(beats) > size >> 10 and "step-000006" in beats[0]


def test_no_checkpoint_is_found_if_none_is_whole_and_each_is_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in folder.glob("step-*/config.json"):
        path.unlink()
    assert checkpoint.latest(folder) is None
    assert [record.getMessage().count("passed over") for record in caplog.records] == [1, 1]


def test_an_unfinished_checkpoint_is_never_loaded_and_the_next_save_removes_it(
    folder: Path, trainer: DeepSpeedTrainer
) -> None:
    shutil.copytree(folder / "step-000006", folder / ".building-000009")
    (folder / "step-000003" / "state.json").unlink()  # rotation was killed in the middle
    assert checkpoint.latest(folder) == folder / "step-000006"
    saved(trainer, folder, RunState(9), keep=2)
    assert sorted(path.name for path in folder.iterdir()) == ["step-000006", "step-000009"]


def test_a_damaged_checkpoint_does_not_push_out_the_one_just_saved(
    folder: Path, trainer: DeepSpeedTrainer
) -> None:
    truncated(folder / "step-000006" / "model.safetensors")
    saved(trainer, folder, RunState(5), keep=1)
    assert checkpoint.latest(folder) == folder / "step-000005"


@pytest.mark.parametrize("again", [False, True])
def test_a_save_killed_at_any_moment_leaves_a_checkpoint_to_resume_from(
    folder: Path, trainer: DeepSpeedTrainer, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`again`: a damaged checkpoint of the same version is in the way."""
    if again:
        shutil.copytree(folder / "step-000006", folder / "step-000009")
        truncated(folder / "step-000009" / "model.safetensors")
    flush, taken = whole_file.flush, list[int]()
    while not taken or taken[-1] != -1:
        left = len(taken)

        def flush_or_die(path: Path) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            flush(path)

        monkeypatch.setattr(whole_file, "flush", flush_or_die)
        try:
            saved(trainer, folder, RunState(9), keep=3)
            taken.append(-1)
        except Killed:
            found = checkpoint.latest(folder)
            assert found is not None
            taken.append(checkpoint.restore(trainer, found).version)
    # Only the last flush, that of the folder, comes after the new name.
    assert taken[:-2] == [6] * (len(taken) - 2) and len(taken) > 7
    assert taken[-2:] == [9, -1]
    assert checkpoint.latest(folder) == folder / "step-000009"
    assert not list(folder.glob(".building-*"))


class Reading(CheckpointCommand):
    """A command that never ends reading what it was given."""

    def __init__(self, command: str, limit_s: float) -> None:
        super().__init__(command, limit_s)
        self.submitted = list[Path]()

    def submit(self, folder: Path, step: int) -> None:
        self.submitted.append(folder)

    def busy(self) -> list[Path]:
        return self.submitted[:1]


def test_a_checkpoint_that_the_users_command_reads_is_not_removed(
    trainer: DeepSpeedTrainer, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(trainer, tmp_path, Silent(), 1, Reading("", 1.0))
    for version in (1, 2, 3):
        checkpoints.save(RunState(version))
    checkpoints.close()
    assert [path.name for path in sorted(tmp_path.glob("step-*"))] == ["step-000001", "step-000003"]


def test_training_goes_on_while_a_checkpoint_goes_to_disk_and_the_next_one_waits(
    trainer: DeepSpeedTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, flush, command = threading.Event(), whole_file.flush, Reading("", 1.0)
    complete = command.submitted

    def flush_slowly(path: Path) -> None:
        assert slow.wait(60)
        flush(path)

    monkeypatch.setattr(whole_file, "flush", flush_slowly)
    checkpoints = Checkpoints(trainer, tmp_path, Silent(), 2, command)
    checkpoints.save(RunState(1))
    assert checkpoint.latest(tmp_path) is None and not complete  # and `save` has returned
    threading.Timer(0.2, slow.set).start()
    checkpoints.save(RunState(2))
    assert complete[:1] == [tmp_path / "step-000001"]
    checkpoints.close()
    assert complete[1:] == [tmp_path / "step-000002"] == [checkpoint.latest(tmp_path)]
    assert checkpoints.finish() and checkpoints.saved == 2


@pytest.mark.parametrize("wrong", [OSError(28, "No space left on device"), SafetensorError("full")])
@pytest.mark.parametrize("place", ["optimizer_state.save", "write_tensors", "flush"])
def test_a_full_disk_costs_a_checkpoint_and_not_the_run(
    folder: Path,
    trainer: DeepSpeedTrainer,
    place: str,
    wrong: Exception,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise wrong

    with monkeypatch.context() as broken:
        where = {"optimizer_state.save": optimizer_state, "write_tensors": tensor_file}
        broken.setattr(where.get(place, whole_file), place.split(".")[-1], full)
        assert not saved(trainer, folder, RunState(9), keep=2)
    assert f"r3l-notice: {folder} could not be" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["step-000003", "step-000006"]
    assert saved(trainer, folder, RunState(9), keep=2)
    assert checkpoint.latest(folder) == folder / "step-000009"


def test_a_checkpoint_has_the_weights_of_its_version_though_the_next_step_has_changed_them(
    trainer: DeepSpeedTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, write = threading.Event(), tensor_file.write_tensors

    def write_slowly(*file: Any) -> None:
        assert slow.wait(60)
        write(*file)

    monkeypatch.setattr(tensor_file, "write_tensors", write_slowly)
    checkpoints = Checkpoints(trainer, tmp_path, Silent(), 2)
    before = {name: tensor.clone() for name, tensor in trainer.weights()}
    checkpoints.save(RunState(1))
    with torch.no_grad():
        for parameter in trainer.module.parameters():
            parameter.add_(1)
    slow.set()
    assert checkpoints.finish()
    saved_ = load_file(tmp_path / "step-000001" / "model.safetensors")
    assert all(torch.equal(saved_[name], tensor) for name, tensor in before.items())
    with torch.no_grad():
        for parameter in trainer.module.parameters():
            parameter.sub_(1)


def test_a_model_that_cannot_be_written_leaves_the_one_before(
    trainer: DeepSpeedTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Silent):
        def save_pretrained(self, folder: Path) -> None:
            raise OSError(28, "No space left on device")

    assert checkpoint.save_model(trainer, tmp_path / "model", Silent(), 4)
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert not checkpoint.save_model(trainer, tmp_path / "model", Full(), 5)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before


def test_a_run_its_continuation_and_its_replay_begin_with_fixed_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(processor, "fix_threads", lambda: calls.append("threads"))

    def made(*_: object, **__: object) -> None:
        calls.append("trainer")

    monkeypatch.setattr(deepspeed_trainer, "DeepSpeedTrainer", made)
    checkpoint.load_run(None, tmp_path, load(None).learner, None, seed=0)
    assert calls == ["threads", "trainer"]


def test_rows_that_repeat_their_prefixes_are_refused_where_the_model_cannot_share_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = SimpleNamespace(pack="rows")
    made = SimpleNamespace(module=module)
    monkeypatch.setattr(deepspeed_trainer, "DeepSpeedTrainer", lambda *_, **__: made)
    monkeypatch.setattr(processor, "fix_threads", lambda: None)
    config = load(None, ["algorithm=forward_kl"])
    with pytest.raises(UserError, match=r"algorithm=forward_kl: makes many rows of each attempt"):
        checkpoint.load_run(None, tmp_path, config.learner, config.algorithm, seed=0)
    module.pack = "tree"
    assert checkpoint.load_run(None, tmp_path, config.learner, config.algorithm, seed=0)
