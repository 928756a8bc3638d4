"""`r3l-learner` refuses what it cannot do: one line, exit code 2, nothing changed."""

import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from buffer.storage import store
from buffer.storage.store import Store
from learner import cli
from learner.checkpoint import SCHEMA
from learner.cli import _start, main
from r3l.errors import UserError
from r3l.files.whole_file import write_json
from r3l.run.config import dump, load
from r3l.run.process.memory import FEW_KERNELS, STEADY_MEMORY
from tests.learner.fakes import tiny_model

NOWHERE = ["--buffer", "tcp://127.0.0.1:1", "--weights", "tcp://127.0.0.1:0"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("policy"))


def refused(
    run: Path, model: Path, *settings: str, resume: bool = False, weights: str | None = None
) -> str:
    """What the learner says, having ended with 2 and changed nothing in the run folder."""
    run.mkdir(exist_ok=True)
    config = run / "config.yaml"
    config.write_text(dump(load(None, [f"model={model}", *settings])))
    before = sorted(run.rglob("*"))
    command = ["train", "--config", str(config), "--run", str(run), *NOWHERE]
    command += ["--weights", weights] * (weights is not None)
    done = CliRunner().invoke(main, command + ["--resume"] * resume)
    assert done.exit_code == 2, done.output
    [line] = [x for x in done.output.splitlines() if x.startswith("r3l-learner: ")]
    assert sorted(run.rglob("*")) == before
    return line


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["learner.deepspeed.gradient_clipping=0.5"], "(use learner settings grad_clip)"),
        (["learner.offload=all", "learner.zero_stage=2"], "needs learner.zero_stage of 3"),
    ],
)
def test_impossible_settings_are_refused(
    tmp_path: Path, model: Path, settings: list[str], named: str
) -> None:
    assert named in refused(tmp_path / "run", model, *settings)


@pytest.mark.parametrize("kept", ["{", "{}", "[]", '{"tokens_per_micro_batch": "few"}'])
def test_an_unreadable_token_budget_is_refused_with_what_to_delete(
    tmp_path: Path, model: Path, kept: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "limits.json").write_text(kept)
    line = refused(run, model)
    assert "limits.json: " in line and "delete the file" in line


def test_a_run_that_is_not_a_folder_and_a_damaged_tokenizer_are_refused(
    tmp_path: Path, model: Path
) -> None:
    config, file = tmp_path / "config.yaml", tmp_path / "file"
    config.write_text(dump(load(None, [f"model={model}"])))
    file.write_text("")
    command = ["train", "--config", str(config), "--run", str(file), *NOWHERE]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2 and "--run" in done.output and "cannot be written" in done.output
    damaged = tmp_path / "model"
    shutil.copytree(model, damaged)
    (damaged / "tokenizer.json").write_text("nope")
    assert "transformers cannot read it" in refused(tmp_path / "run", damaged)


def test_an_unusable_address_is_refused_before_the_model_is_loaded(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who loads it, fails.
    monkeypatch.setattr("learner.step.deepspeed_trainer.DeepSpeedTrainer", None)
    run = tmp_path / "run"
    assert "weights 'nonsense': must look like" in refused(run, model, weights="nonsense")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "choose a free port" in refused(run, model, weights=f"tcp://127.0.0.1:{port}")


def test_an_invalid_model_folder_is_refused(tmp_path: Path, model: Path) -> None:
    assert "no config.json" in refused(tmp_path / "run", tmp_path / "nothing")
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    (copy / "model.safetensors").unlink()
    assert "no weights" in refused(tmp_path / "run", copy)
    (copy / "model.safetensors").write_bytes(b"half of it")
    assert "is damaged" in refused(tmp_path / "run", copy)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, model: Path) -> None:
    run = tmp_path / "run"
    folder = run / "checkpoints" / "step-000003"
    folder.mkdir(parents=True)
    values = {"schema": SCHEMA, "version": 3, "model_digest": "of another", "files": {}}
    write_json(folder / "state.json", values)
    line = refused(run, model, resume=True)
    assert "step-000003" in line and "another model" in line


@pytest.mark.parametrize(("parser", "shown"), [("auto", True), ("none", False)])
def test_an_agents_model_is_saved_with_a_template_that_shows_tools(
    tmp_path: Path, model: Path, parser: str, shown: bool
) -> None:
    settings = [f"model={model}", "env=agent", f"actor.agent.tool_parser={parser}"]
    tokenizer = _start(load(None, settings), tmp_path, resume=False).tokenizer
    tokenizer.save_pretrained(tmp_path / "saved")
    assert ("<tool_call>" in (tmp_path / "saved" / "chat_template.jinja").read_text()) == shown


def test_a_rank_that_lost_another_one_ends_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: Path) -> None:
        raise RuntimeError("Connection closed by peer")

    waited = list[float]()
    monkeypatch.setattr(cli.configuration, "load", lost)
    monkeypatch.setattr(cli.time, "sleep", waited.append)
    command = ["train", "--config", str(tmp_path / "config.yaml"), "--run", str(tmp_path)]
    for ranks, seconds in (("1", []), ("2", [cli.LATER_S])):
        monkeypatch.setenv("WORLD_SIZE", ranks)
        done = CliRunner().invoke(main, command)
        assert isinstance(done.exception, RuntimeError) and waited == seconds
    assert cli.LATER_S > 2.0, "DeepSpeed's launcher polls every second"


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_says_an_error_that_it_has_alone_once_rank_0_had_time_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    def refused(_: Path) -> None:
        raise UserError("algorithm a.py:A: loss raised KeyError in line 7: 'kl'")

    waited = list[float]()
    monkeypatch.setattr(cli.configuration, "load", refused)
    monkeypatch.setattr(cli.time, "sleep", waited.append)
    monkeypatch.setattr(cli.signal, "signal", lambda number, _: waited.append(number))
    monkeypatch.setenv("RANK", rank)
    command = ["train", "--config", str(tmp_path / "config.yaml"), "--run", str(tmp_path)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert "r3l-learner: algorithm a.py:A: loss raised KeyError in line 7: 'kl'\n" in done.output
    # A rank ignores SIGTERM, with which DeepSpeed's launcher ends those that rank 0 leaves.
    assert waited == ([] if rank == "0" else [signal.SIGTERM, cli.LATER_S])


@pytest.mark.parametrize(
    "command", [["weights", "--version", "1", "--out", "out"], ["replay", "1"]]
)
def test_a_folder_that_is_no_run_is_named_in_one_line(tmp_path: Path, command: list[str]) -> None:
    verb, *rest = command
    done = CliRunner().invoke(main, [verb, str(tmp_path), *rest])
    assert done.exit_code == 2 and list(tmp_path.iterdir()) == []
    [line] = [line for line in done.output.splitlines() if line.startswith("r3l-learner: ")]
    assert "has no config.yaml" in line


def test_a_run_without_its_store_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.yaml").write_text(dump(load(None)))
    monkeypatch.chdir(tmp_path)
    for name in ("first", "runs/first"):
        done = CliRunner().invoke(main, ["replay", name, "3"])
        assert done.exit_code == 2 and "no store in runs/first/buffer" in done.output


def test_a_store_of_another_schema_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(dump(load(None)))
    Store(tmp_path / "buffer", map_gib=0.1).close()
    monkeypatch.setattr(store, "SCHEMA", store.SCHEMA + 1)
    done = CliRunner().invoke(main, ["replay", str(tmp_path), "3"])
    [line] = [line for line in done.output.splitlines() if line.startswith("r3l-learner: ")]
    assert done.exit_code == 2 and f"has schema {store.SCHEMA - 1}" in line


def test_every_command_switches_dynamic_threads_off_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_DYNAMIC", "TRUE")
    monkeypatch.setenv("MKL_DYNAMIC", "TRUE")
    assert CliRunner().invoke(main, ["train"]).exit_code == 2
    assert (os.environ["OMP_DYNAMIC"], os.environ["MKL_DYNAMIC"]) == ("FALSE", "FALSE")


def test_every_command_starts_with_what_keeps_its_memory_steady(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class StartedAgain(Exception):
        pass

    def start(path: str, words: list[str], environment: dict[str, str]) -> None:
        assert (path, words[1:]) == (sys.executable, sys.orig_argv[1:])
        assert environment.items() >= (STEADY_MEMORY | FEW_KERNELS).items()
        raise StartedAgain

    for name in (*STEADY_MEMORY, *FEW_KERNELS):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "execve", start)
    monkeypatch.setattr(cli, "end_process", sys.exit)  # which would end pytest at once
    with pytest.raises(StartedAgain):
        main()
