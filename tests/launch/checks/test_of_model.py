"""Models that cannot be trained, or cannot play, are refused in one line."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from launch.checks.of_model import chat_format, check_learner, in_bfloat16, model_folder
from launch.cli import main
from learner.checkpoint import SCHEMA
from r3l.errors import UserError
from r3l.files.whole_file import write_json
from r3l.models.model_folder import model_digest
from r3l.models.model_path import builtin_policy
from r3l.run.config import dump, load
from tests.launch.fakes import refused


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path, run: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(builtin_policy(), model)
    for file in model.glob("*.jinja"):
        file.unlink()
    settings = model / "tokenizer_config.json"
    values = json.loads(settings.read_text())
    values.pop("chat_template", None)
    settings.write_text(json.dumps(values))
    line = refused("--run", run, "--model", str(model))
    assert "chat template" in line and not run.exists()
    with pytest.raises(UserError, match="chat template"):
        chat_format(load(None, [f"model={model}"]), model_folder(str(model)))
    assert model_folder("builtin") == builtin_policy()


def test_the_shipped_policy_says_that_it_knows_no_other_world_and_how_to_make_one_that_does(
    run: Path,
) -> None:
    line = refused("--run", run, "--env", "countdown", "--check")
    assert line.startswith("r3l-launch: --env countdown: the shipped policy")
    assert "only workshop" in line and "--model" in line
    assert line.endswith("r3l-learner warmup --env countdown --out runs/warm")
    tasks = run.with_suffix(".jsonl")
    tasks.write_text('{"id": 1}')
    options = f'{{"command": "echo 1", "tasks": "{tasks}"}}'
    line = refused("--run", run, "--env", "agent", f"env.options={options}", "algorithm=grpo")
    assert line.endswith("knows only workshop; give a --model")
    asked = CliRunner().invoke(main, ["--env", "countdown", "--model", "builtin", "--check"])
    assert asked.exit_code == 0 and "knows only workshop" in asked.output
    assert "shipped policy" not in CliRunner().invoke(main, ["--check"]).output


def test_the_precision_follows_the_device_unless_it_is_chosen() -> None:
    learner = load(None).learner
    assert not in_bfloat16(learner, "cpu") and in_bfloat16(learner, "gpu")
    assert in_bfloat16(load(None, ["learner.dtype=bfloat16"]).learner, "cpu")


AVERAGED = """
from r3l.algorithms.algorithm import Algorithm

class Mine(Algorithm):
    @property
    def needs(self):
        return ("averaged",)
"""


def test_weights_that_the_learner_cannot_hold_are_refused_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(AVERAGED)
    for stage in (2, 3):
        settings = [f"algorithm={file}:Mine", f"learner.zero_stage={stage}"]
        config = load(None, settings)
        if stage == 2:
            check_learner(config, "cpu", builtin_policy())
            continue
        with pytest.raises(UserError, match=r"learner\.zero_stage=3: the algorithm needs averaged"):
            check_learner(config, "cpu", builtin_policy())


def checkpoint_of(run: Path, model: Path, **more: object) -> None:
    folder = run / "checkpoints" / "step-000007"
    folder.mkdir(parents=True)
    values = {
        "schema": SCHEMA,
        "version": 7,
        "groups": [],
        "model_digest": model_digest(model),
        "files": {},
    }
    values |= {"dtype": "torch.float32"} | more
    write_json(folder / "state.json", values)
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
