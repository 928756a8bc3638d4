"""What a run leaves in its folder, and what is read of it when it is damaged."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from r3l.errors import UserError
from r3l.files.checksums import text_with_checksum
from r3l.files.whole_file import write_json
from r3l.run.bill import Usage
from r3l.run.config import RunConfig, dump, load
from r3l.run.files.progress_lines import KINDS, AgainLine, StepLine
from r3l.run.files.run_folder import (
    Hang,
    ProcessStatus,
    RunFolder,
    SkippedStep,
    run_folder,
    run_name,
    write_evaluation,
)
from tests.r3l.files.made import evaluation, flips

READERS: dict[str, Callable[[RunFolder], object]] = {
    "config.yaml": RunFolder.own_settings,
    "config.next.yaml": RunFolder.settings,
    "config.before-step-000005.yaml": lambda run: run.settings_of(2),
    "progress.jsonl": RunFolder.history,
    "hangs.jsonl": RunFolder.hangs,
    "machines.jsonl": RunFolder.machines,
    ".last-heartbeat": RunFolder.heartbeat,
    "bill.json": RunFolder.bill,
    "data-sets.json": RunFolder.data_sets,
    "limits.json": lambda run: run.token_budget(8192),
    "best/evaluation.json": RunFolder.best_evaluation,
    ".wandb-id": lambda run: run.service_id("wandb"),
}
"""Every file that is read, and what reads it."""


def config(*overrides: str) -> RunConfig:
    return load(None, list(overrides))


@pytest.fixture
def begun(tmp_path: Path) -> RunFolder:
    """A run that was begun with the defaults."""
    run = RunFolder(tmp_path)
    run.write_settings(config())
    return run


@pytest.fixture
def full(begun: RunFolder) -> RunFolder:
    """A run with every file."""
    begun.write_settings(config("learner.lr=0.5"))
    begun.settle_settings(5)
    begun.write_settings(config("learner.lr=0.25"))
    for line in (evaluation(0), StepLine(1, {"learner/loss": 0.5}),
                 StepLine(2, {"learner/loss": 0.25}), AgainLine(1, 2), StepLine(2)):  # fmt: skip
        begun.add_progress(line)
    begun.add_machine(0, {"processor": "A", "threads": "2"})
    begun.add_hang("micro-batch 1 of 2", "itself")
    begun.add_skipped(SkippedStep(3, 4, "nan", "nan", ["g1"], ["t1"]))
    begun.write_heartbeat("checkpoint 4 – naïve")
    begun.keep_token_budget(2048)
    begun.write_bill({"actor-0.a": Usage(sampled=5), "learner.b": Usage(wall_s=2.5)})
    begun.write_versions({"r3l": "0.1"})
    begun.write_data_sets({"org/d": "c0ffee"})
    begun.keep_service_id("wandb", "abc")
    (begun.path / "best").mkdir()
    write_evaluation(begun.path / "best", evaluation(2))
    return begun


def test_everything_is_read_back_as_it_was_written(full: RunFolder) -> None:
    assert {path.name for path in full.path.iterdir()} == {
        *(name.partition("/")[0] for name in READERS), "skipped.jsonl", "versions.json",
    }  # fmt: skip
    rates = [full.settings_of(step).learner.lr for step in (4, 5)]
    assert rates == [config().learner.lr, 0.5] and full.settings().learner.lr == 0.25
    history = full.history()
    assert [line.step for line in history.steps] == [1, 2] and history.damaged == 0
    (hang,) = full.hangs()
    assert hang == Hang("micro-batch 1 of 2", "itself", hang.time)
    assert (beat := full.heartbeat()) is not None and beat.doing == "checkpoint 4 – naïve"
    assert (full.token_budget(8192), full.token_budget(1024)) == (2048, 1024)
    assert full.machine_of(2) == {"processor": "A", "threads": "2"}
    assert full.bill() == {"actor-0.a": Usage(sampled=5), "learner.b": Usage(wall_s=2.5)}
    assert full.data_sets() == {"org/d": "c0ffee"} and full.service_id("wandb") == "abc"
    best = full.best_evaluation()
    assert best is not None and (best.step, best.success) == (2, 0.5)


def test_evaluations_are_read_without_the_steps(
    full: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    full.add_progress(evaluation(2, 0.25))
    full.add_progress(evaluation(0, 0.75))
    known = full.history().evaluations
    assert [(line.step, line.success) for line in known] == [(0, 0.75), (2, 0.25)]
    monkeypatch.delitem(KINDS, "step")  # no step can be read
    assert full.evaluations() == known


def test_what_is_missing_is_absent_and_a_folder_without_settings_is_no_run(
    tmp_path: Path,
) -> None:
    run = RunFolder(tmp_path / "nothing")
    assert run.history().steps == run.hangs() == [] and run.heartbeat() is None
    assert run.evaluations() == run.last_steps(1) == []
    assert run.token_budget(8192) == 8192
    assert run.service_id("wandb") == "" and run.best_evaluation() is None
    assert run.machine_of(1) == run.bill() == {}
    for read in (run.require_settings, run.settings, run.own_settings, lambda: run.settings_of(1)):
        with pytest.raises(UserError, match=r"nothing: has no config\.yaml"):
            read()


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_cut_is_read_or_refused_by_its_name(full: RunFolder, name: str) -> None:
    path, chance = full.path / name, random.Random(name)
    whole = path.read_bytes()
    cuts = range(len(whole)) if len(whole) < 600 else chance.sample(range(len(whole)), 60)
    for content in [*(whole[:cut] for cut in (0, *cuts)), bytes(len(whole))]:
        path.write_bytes(content)
        try:
            READERS[name](full)
        except UserError as error:
            assert path.name in str(error) and "\n" not in str(error), content


@pytest.mark.parametrize("name", sorted(READERS.keys() - {".last-heartbeat"}))
def test_a_flipped_bit_is_noticed_or_changes_no_value(
    full: RunFolder, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, read = full.path / name, READERS[name]
    whole, known, unseen, named = path.read_bytes(), read(full), list[bytes](), 0
    for content in flips(whole):
        path.write_bytes(content)
        caplog.clear()
        try:
            seen = read(full) == known or f"{path}: " in caplog.text
            unseen += [] if seen else [content]
            named += len(caplog.records)
        except UserError as error:
            named += path.name in str(error) and "\n" not in str(error)
    assert unseen == [] and named > 0


def test_each_step_is_of_the_machine_of_the_learner_that_made_it_last(begun: RunFolder) -> None:
    a, b = {"processor": "A"}, {"processor": "B"}

    def names() -> str:
        return "".join(begun.machine_of(step)["processor"] for step in range(1, 7))

    for start, facts, expected in [
        (0, a, "AAAAAA"),
        (2, a, "AAAAAA"),
        (4, b, "AAAABB"),
        (2, b, "AABBBB"),
        (3, b, "AABBBB"),
        (1, a, "AAAAAA"),
    ]:
        begun.add_machine(start, facts)
        assert names() == expected
    assert len(begun.machines_file.read_text().splitlines()) == 4


def test_a_folder_has_one_launcher(begun: RunFolder) -> None:
    with begun.lock(), pytest.raises(UserError, match="another r3l-launch"):
        begun.lock()
    begun.lock().close()


def test_settings_that_a_power_loss_left_empty_are_refused(begun: RunFolder) -> None:
    begun.own_config.write_text("")
    for read in (begun.settings, begun.own_settings, lambda: begun.settings_of(1)):
        with pytest.raises(UserError, match=r"config\.yaml: is empty"):
            read()


def test_a_lost_evaluation_of_the_best_weights_is_reported(
    full: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    (full.path / "best" / "evaluation.json").write_text("")
    assert full.best_evaluation() is None
    assert "evaluation.json is empty" in caplog.text
    write_json(full.path / "best" / "evaluation.json", {"kind": "step", "step": 1, "time": 1})
    with pytest.raises(UserError, match=r"evaluation\.json: damaged .*metrics.*; delete"):
        full.best_evaluation()


def test_settings_before_a_step_with_another_name_are_refused(begun: RunFolder) -> None:
    (begun.path / "config.before-step-last.yaml").write_text("seed: 1\n")
    with pytest.raises(UserError, match=r"before-step-last\.yaml: .* step number"):
        begun.settings_of(1)


def test_other_settings_replace_the_runs_own_when_a_step_is_made_with_them(
    begun: RunFolder,
) -> None:
    before, new = text_with_checksum(dump(config())), config("learner.lr=0.5")
    begun.write_settings(new)
    assert begun.settings() == new and begun.own_config.read_text() == before
    for step in (8, 9):
        begun.settle_settings(step)
        assert begun.own_settings() == begun.settings() == new
    begun.drop_next_settings()
    assert begun.settings() == new
    kept = {path.name for path in begun.path.iterdir()}
    assert kept == {"config.yaml", "config.before-step-000008.yaml"}
    assert (begun.path / "config.before-step-000008.yaml").read_text() == before


def test_other_settings_without_a_step_leave_no_trace(begun: RunFolder) -> None:
    before = text_with_checksum(dump(config()))
    begun.write_settings(config("learner.lr=0.5"))
    begun.drop_next_settings()
    begun.settle_settings(8)
    assert [path.name for path in begun.path.iterdir()] == ["config.yaml"]
    assert begun.config_file.read_text() == before
    begun.write_settings(config("learner.lr=0.5"))  # and its launcher was killed
    begun.write_settings(config())
    assert begun.config_file == begun.own_config


def test_the_settings_are_those_with_which_a_step_was_made(tmp_path: Path) -> None:
    names = {"config": 3, "config.before-step-000005": 1, "config.before-step-000008": 2}
    for name, steps in names.items():
        (tmp_path / f"{name}.yaml").write_text(dump(config(f"learner.steps={steps}")))
    run = RunFolder(tmp_path)
    found = [run.settings_of(step).learner.steps for step in (1, 4, 5, 7, 8, 20)]
    assert found == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("name", "folder"), [("v1.2", "runs/v1.2"), ("./first", "first"), ("/tmp/r", "/tmp/r")]
)
def test_a_bare_run_name_is_a_folder_under_runs_and_any_other_a_path(
    name: str, folder: str
) -> None:
    assert run_folder(name) == Path(folder)
    assert run_name(run_folder(name)) == name


def test_a_run_without_a_name_is_named_by_the_time() -> None:
    assert re.fullmatch(r"runs/\d{8}-\d{6}", str(run_folder(None)))


def test_a_process_reports_to_a_run_alone_and_is_forgotten_before_its_next_start(
    tmp_path: Path,
) -> None:
    folder, status = RunFolder(tmp_path), ProcessStatus("ready", name="a/../0.ab")
    folder.report("a/../0", status)
    assert list(tmp_path.iterdir()) == [] and folder.status_of("a/../0") is None  # of no run
    folder.logs.mkdir()
    folder.report("a/../0", status)
    assert folder.status_of("a/../0") == status and len(list(folder.processes.iterdir())) == 1
    folder.forget("a/../0")
    folder.forget("never-started")
    assert folder.status_of("a/../0") is None


def test_a_process_that_cannot_report_continues(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.logs.mkdir()
    folder.processes.touch()  # no folder can be made here, as on a full disk
    folder.report("buffer", ProcessStatus("ready"))


def test_a_name_of_bytes_that_are_no_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"--run: .*surrogate"):
        run_folder("a\udcff")
