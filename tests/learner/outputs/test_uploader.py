"""Uploads beside training, with a target that the test lets through, holds or breaks."""

import shutil
import threading
import time
from pathlib import Path

import pytest

from learner.outputs import uploader
from learner.outputs.uploader import Uploader, begin
from r3l.settings.uploading import UploadConfig
from tests.learner.fakes import Learning, Recording, buffer_options, prepare, steps_of, tiny_model

LONG = 60.0


class Held:
    """A target whose sends wait for `go` and then fail or keep what they got."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.broken = False
        self.got: dict[str, str] = {}

    def check(self) -> None: ...

    def send(self, folder: Path, name: str) -> None:
        self.begun.set()
        assert self.go.wait(LONG)
        if self.broken:
            raise OSError("no route to host")
        self.got[name] = (folder / "weights").read_text()


def made(run: Path, name: str) -> Path:
    folder = run / name
    folder.mkdir(parents=True)
    (folder / "weights").write_text(name)
    return folder


def test_a_folder_that_the_run_removes_meanwhile_is_uploaded_whole(tmp_path: Path) -> None:
    target = Held()
    up = Uploader(target, "held://")
    folder = made(tmp_path, "step-000001")
    up.submit(folder, "checkpoints/step-000001")
    shutil.rmtree(folder)
    target.go.set()
    assert up.finish(LONG, lambda: False)
    assert target.got == {"checkpoints/step-000001": "step-000001"} and up.failed == 0
    assert list(tmp_path.iterdir()) == []  # the links are gone


def test_of_checkpoints_that_wait_only_the_newest_is_uploaded_and_other_kinds_stay(
    tmp_path: Path,
) -> None:
    target = Held()
    up = Uploader(target, "held://")
    up.submit(made(tmp_path, "step-000001"), "checkpoints/step-000001")
    assert target.begun.wait(LONG)
    for name in ("step-000002", "step-000003"):
        up.submit(made(tmp_path, name), f"checkpoints/{name}")
    up.submit(made(tmp_path, "model"), "model")
    target.go.set()
    assert up.finish(LONG, lambda: False)
    assert list(target.got) == ["checkpoints/step-000001", "checkpoints/step-000003", "model"]


def test_failures_are_counted_said_once_and_the_next_upload_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Held()
    target.broken = True
    target.go.set()
    up = Uploader(target, "held://")
    for name in ("step-000001", "step-000002"):
        up.submit(made(tmp_path, name), f"checkpoints/{name}")
        while up._left():
            time.sleep(0.005)
    target.broken = False
    up.submit(made(tmp_path, "step-000003"), "checkpoints/step-000003")
    assert up.finish(LONG, lambda: False)
    assert up.failed == 2 and list(target.got) == ["checkpoints/step-000003"]
    said = capsys.readouterr().err.splitlines()
    failed = [line for line in said if "could not be copied" in line]
    assert len(failed) == 1 and "step-000001" in failed[0] and "no route to host" in failed[0]


def test_a_folder_that_is_not_there_counts_as_failed(tmp_path: Path) -> None:
    up = Uploader(Held(), "held://")
    up.submit(tmp_path / "gone", "best")
    assert up.failed == 1 and up.finish(LONG, lambda: False)


@pytest.mark.parametrize("stopped", [True, False])
def test_the_end_of_a_run_does_not_wait_longer_than_its_deadline(
    stopped: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(uploader, "STOPPED_S", 0.05)
    monkeypatch.setattr(uploader, "ROUND_S", 0.02)
    target = Held()
    up = Uploader(target, "held://")
    up.submit(made(tmp_path, "model"), "model")
    assert not up.finish(LONG if stopped else 0.05, lambda: stopped)
    said = capsys.readouterr().err
    assert "waits up to" in said and "model did not get to held:// in time" in said
    target.go.set()


def test_links_that_a_killed_learner_left_are_removed_and_without_a_target_nothing_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "checkpoints" / ".uploading-step-000001-7").mkdir(parents=True)
    (tmp_path / ".uploading-model-7").mkdir()
    assert begin(UploadConfig(), tmp_path) is None
    assert [path.name for path in tmp_path.rglob("*")] == ["checkpoints"]
    assert begin(UploadConfig(to="memory://x"), tmp_path) is not None


@pytest.mark.system
def test_a_learner_of_two_ranks_uploads_its_checkpoints_and_its_model(
    serve, tmp_path: Path
) -> None:
    run, there = tmp_path / "run", tmp_path / "there"
    prepare(run, tiny_model(tmp_path / "policy"), f"learner.upload.to=file://{there}")
    served = serve(tmp_path / "store", *buffer_options())
    with Recording(served.endpoint):
        learner = Learning(run, served.endpoint, ranks=2)
        assert learner.wait() == 0, learner.log()
    last = run / "checkpoints" / "step-000009"
    for folder, copy in ((last, "checkpoints/step-000009"), (run / "model", "model")):
        names = sorted(path.name for path in folder.iterdir())
        assert names == sorted(path.name for path in (there / copy).iterdir())
        for name in names:
            assert (folder / name).read_bytes() == (there / copy / name).read_bytes()
    assert steps_of(run)[-1]["learner/uploads_failed"] == 0
    assert not list(run.rglob(".uploading-*"))
