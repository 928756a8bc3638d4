"""The user's command on each checkpoint: real processes that wait, fail or copy."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from learner import checkpoint_command
from learner.checkpoint_command import CheckpointCommand, arguments, check_command
from r3l.errors import UserError
from tests.processes import command_line

LONG = 60.0
HELD = "sh -c 'while [ ! -e {folder}/../go ]; do sleep 0.05; done; echo {name} >> {folder}/../done'"


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def made(parent: Path, *names: str) -> list[Path]:
    folders = [parent / name for name in names]
    for folder in folders:
        folder.mkdir(parents=True)
    return folders


def test_placeholders_are_filled_in_without_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "a $(b) 'c'" / "step-000050"
    line = "rsync -a {folder} 'me:/my runs/{name}' --step={step:03d} {{x}}"
    assert arguments(line, folder, 50) == [
        "rsync", "-a", str(folder), "me:/my runs/step-000050", "--step=050", "{x}"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "command",
    ["cp '{folder}", "cp {folder", "cp {folders}", "cp {}", "cp {folder.x}", "cp {step:y}", " "],
)
def test_a_command_that_cannot_be_read_is_refused_on_any_machine(command: str) -> None:
    with pytest.raises(UserError, match=r"learner\.on_checkpoint") as raised:
        check_command(command, here=False)
    assert "\n" not in str(raised.value)


def test_a_program_that_does_not_exist_is_refused_where_it_would_run() -> None:
    check_command("")
    check_command("cp -r {folder} /mnt/{name}")
    check_command("no-such-program {folder}", here=False)
    with pytest.raises(UserError, match="no-such-program"):
        check_command("no-such-program {folder}")


def test_one_command_runs_at_a_time_and_only_the_newest_checkpoint_waits(tmp_path: Path) -> None:
    command = CheckpointCommand(HELD, LONG)
    steps = made(tmp_path, "step-000001", "step-000002", "step-000003")
    [model] = made(tmp_path, "model")
    command.submit(steps[0], 1)
    until(command._jobs[steps[0]].running)
    for number, folder in enumerate(steps[1:], 2):
        command.submit(folder, number)
    command.submit(model, 3)
    assert command.busy() == [steps[0], steps[2], model]
    (tmp_path / "go").touch()
    command.finish(lambda: False)
    assert (tmp_path / "done").read_text().split() == ["step-000001", "step-000003", "model"]
    assert command.failed == 0 and command.busy() == []


@pytest.mark.parametrize(
    ("command", "why"), [("false {folder}", "exit code 1"), ("no-such {folder}", "No such file")]
)
def test_a_command_that_fails_is_counted_and_reported_in_one_line(
    command: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = CheckpointCommand(command, LONG)
    for number, folder in enumerate(made(tmp_path, "step-000001", "step-000002")):
        failing.submit(folder, number)
        until(lambda: not failing.busy())
    failing.finish(lambda: False)
    said = capsys.readouterr().err.splitlines()
    assert failing.failed == 2 and len(said) == 2
    assert "step-000001" in said[0] and why in said[0]


def sleeping(seconds: str) -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [one for one in found if command_line(one) == ["sleep", seconds]]


def test_a_command_and_all_that_it_started_is_killed_at_its_deadline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = CheckpointCommand("sh -c 'sleep 77 & touch {folder}/begun; sleep 77'", 3.0)
    (folder,) = made(tmp_path, "step-000001")
    slow.submit(folder, 1)
    until(lambda: slow.failed)
    assert (folder / "begun").exists() and sleeping("77") == []
    assert "killed after 3 s" in capsys.readouterr().err
    slow.finish(lambda: False)


@pytest.mark.parametrize("stopped", [True, False])
def test_the_end_of_a_run_does_not_wait_longer_than_its_deadline(
    stopped: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(checkpoint_command, "STOPPED_S", 0.3)
    slow = CheckpointCommand("sleep 78", LONG if stopped else 0.3)
    for folder in made(tmp_path, "model", "best"):
        slow.submit(folder, 1)
    began = time.monotonic()
    slow.finish(lambda: stopped)
    assert time.monotonic() - began < LONG / 4 and sleeping("78") == []
    said = capsys.readouterr().err
    assert "waiting up to" in said and "model, best" in said and "the run ends before" in said
