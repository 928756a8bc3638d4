"""What is wrong with a learner's model, checkpoint, DeepSpeed keys or machines: said before
anything starts, in one line, and nothing is changed."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from envs.builtin.policy import builtin_policy
from launch import hosts
from launch.process_commands import ProcessCommands
from r3l.config import dump, load
from r3l.errors import UserError
from r3l.model_folder import fingerprint
from tests.launch.test_plan import refused


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_a_model_folder_without_config_or_tokenizer_is_refused(tmp_path: Path, run: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(builtin_policy(), model)
    config = (model / "config.json").read_text()
    (model / "config.json").write_text("{}")
    assert "transformers cannot read it" in refused("--run", str(run), "--model", str(model))
    (model / "config.json").write_text(config)
    for file in model.glob("token*"):
        file.unlink()
    assert "no tokenizer" in refused("--run", str(run), "--model", str(model))
    (model / "config.json").unlink()
    assert "no config.json" in refused("--run", str(run), "--model", str(model))
    assert not run.exists()


def test_a_deepspeed_key_that_the_learner_sets_is_refused(tmp_path: Path, run: Path) -> None:
    line = refused("--run", str(run), "learner.deepspeed.train_batch_size=8")
    assert "train_batch_size=8" in line and "groups_per_step" in line
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"scheduler": {"type": "WarmupLR"}}))
    assert "scheduler.type" in refused("--run", str(run), f"learner.deepspeed={file}")
    assert not run.exists()


def checkpoint_of(run: Path, model: Path, **more: object) -> None:
    folder = run / "checkpoints" / "step-000007"
    folder.mkdir(parents=True)
    values = {"schema": 2, "version": 7, "groups": [], "origin": fingerprint(model), "files": {}}
    values |= {"world": 1, "stage": 0, "dtype": "torch.float32"} | more
    (folder / "state.json").write_text(json.dumps(values))
    (run / "config.yaml").write_text(dump(load(None, [f"model={model}"])))


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, run: Path) -> None:
    from safetensors.torch import load_file, save_file

    other = tmp_path / "other"
    shutil.copytree(builtin_policy(), other)
    weights = load_file(other / "model.safetensors")
    save_file({k: v * 1.5 for k, v in weights.items()}, other / "model.safetensors")
    checkpoint_of(run, other)
    before = (run / "config.yaml").read_text()
    line = refused("--run", str(run), "--resume", "--model", str(builtin_policy()))
    assert "step-000007" in line and "another model" in line
    assert (run / "config.yaml").read_text() == before


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ({"world": 8}, "--learner"),
        ({"stage": 2}, "learner.zero_stage"),
        ({"dtype": "torch.bfloat16"}, "learner.dtype"),
        ({"schema": 1}, "schema 1"),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused(run: Path, written: dict, named: str) -> None:
    checkpoint_of(run, builtin_policy(), **written)
    assert named in refused("--run", str(run), "--resume")


def test_the_fingerprint_follows_the_weights_and_the_vocabulary_not_the_place(
    tmp_path: Path,
) -> None:
    model, moved = builtin_policy(), tmp_path / "moved"
    shutil.copytree(model, moved)
    assert fingerprint(moved) == fingerprint(model)
    data = bytearray((moved / "model.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (moved / "model.safetensors").write_bytes(data)
    assert fingerprint(moved) != fingerprint(model)


HERE = socket.gethostname()


@pytest.mark.parametrize(
    ("text", "ranks", "why"),
    [
        ("", 2, "names no machine"),
        ("this-one slots=x", 2, "line 1"),
        ("# c\n127.0.0.1 slots=1\n127.0.0.1 slots=1", 2, "line 3: 127.0.0.1 stands twice"),
        ("127.0.0.1 slots=8", 2, "8 slots for 2 ranks"),
        ("no-such-machine.invalid slots=2", 2, "no address"),
        ("192.0.2.1 slots=2", 2, "start r3l-launch on the first machine"),
        ("127.0.0.1 slots=1\n192.0.2.1 slots=1", 2, "pdsh"),
    ],
)
def test_a_bad_hostfile_is_refused_with_its_line(
    tmp_path: Path, run: Path, text: str, ranks: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts.shutil, "which", lambda program: None)
    file = tmp_path / "hosts"
    file.write_text(text)
    line = refused("--run", str(run), "--learner", f"{ranks}gpu", "--hostfile", str(file))
    assert why in line and not run.exists()


def test_a_hostfile_that_is_not_there_is_refused(run: Path) -> None:
    assert "cannot be read" in refused("--run", str(run), "--hostfile", "/no/such/file")


def test_machines_that_ssh_does_not_reach_are_named_before_anything_starts(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 slots=1\n192.0.2.1 slots=1\n")
    for program in ("ssh", "pdsh"):
        (tmp_path / program).write_text(
            '#!/bin/sh\ncase "$*" in *192.0.2.1*) echo "Permission denied." >&2; exit 255;; esac'
        )
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    line = refused("--run", str(run), "--learner", "2gpu", "--hostfile", str(file))
    assert "192.0.2.1 cannot be reached (Permission denied.)" in line and not run.exists()


def test_several_machines_are_started_through_deepspeeds_hostfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launch.plan import make_plan

    monkeypatch.setattr(hosts.shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(hosts, "_check_reachable", lambda path, host: None)
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 slots=8  # this one\n192.0.2.1 slots=8\n")
    plan = make_plan(
        load(None, []),
        tmp_path / "run",
        actors=1,
        learner="16gpu",
        buffer_bind="tcp://127.0.0.1:*",
        weights_bind="tcp://127.0.0.1:*",
        resume=False,
        hostfile=file,
    )
    command = ProcessCommands(plan).learner()
    at = command.index("--hostfile")
    assert command[at + 1 : at + 4] == [str(file), "--master_addr", "127.0.0.1"]
    assert "--num_gpus" not in command


def test_more_slots_than_ranks_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 slots=4")
    with pytest.raises(UserError, match="give --learner 4gpu"):
        hosts.read_hosts(file, 2)
