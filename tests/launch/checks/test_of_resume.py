"""Runs that cannot be continued are refused in one line."""

import json
import shutil
from pathlib import Path

import pytest

from envs.builtin.policy import builtin_policy
from r3l.config import dump, load
from r3l.model_folder import fingerprint
from tests.launch.fakes import refused


def checkpoint_of(run: Path, model: Path, **more: object) -> None:
    folder = run / "checkpoints" / "step-000007"
    folder.mkdir(parents=True)
    values = {"schema": 3, "version": 7, "groups": [], "origin": fingerprint(model), "files": {}}
    values |= {"dtype": "torch.float32"} | more
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
    line = refused("--run", run, "--resume", "--model", str(builtin_policy()))
    assert "step-000007" in line and "another model" in line
    assert (run / "config.yaml").read_text() == before


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ({"dtype": "torch.bfloat16"}, "learner.dtype"),
        ({"schema": 1}, "schema 1"),
        ({"lora": {"rank": 4, "alpha": 32.0, "targets": []}}, "the same learner.lora"),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused(run: Path, written: dict, named: str) -> None:
    checkpoint_of(run, builtin_policy(), **written)
    assert named in refused("--run", run, "--resume")


def test_another_run_of_the_same_name_is_refused(run: Path) -> None:
    checkpoint_of(run, builtin_policy())
    assert "seed" in refused("--run", run, "--resume", "seed=8")
