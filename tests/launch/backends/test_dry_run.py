"""What --dry-run prints: whole plans, compared with those in `plans/`, and refusals."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from launch.checks.presets import PRESETS
from launch.cli import main
from r3l.models.model_path import builtin_policy
from tests.launch.backends.models import large_model
from tests.launch.backends.on_file import check_on_file
from tests.launch.fakes import refused

LARGE = ["--env", "workshop", "actor.max_model_len=8192", "learner.groups_per_step=64",
         "learner.gradient_checkpointing=true"]  # fmt: skip


def dry_run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["--dry-run", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("laptop", ["--hardware", "16cpu", "--actors", "2"]),
        ("1gpu", ["--hardware", "1x141GB", "--actors", "1", "--learner", "1gpu", *LARGE,
                  "learner.lora.rank=32"]),
        ("8gpu", ["--hardware", "8x141GB", "--actors", "16", "--learner", "8gpu", *LARGE,
                  "learner.zero_stage=3"]),
        ("16gpu", ["--hardware", "2x8x80GB", "--actors", "8", "--learner", "8gpu", *LARGE,
                   "learner.zero_stage=2", "--cluster", "ray"]),
        ("64gpu", ["--hardware", "8x8x80GB", "--actors", "16", "--learner", "4x8gpu",
                   "--actor-gpus", "2", *LARGE, "learner.zero_stage=2", "--cluster", "ray"]),
    ],
)  # fmt: skip
def test_a_plan_is_the_one_on_file(
    name: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if name != "laptop":
        arguments = [*arguments, "--model", str(large_model(tmp_path / "model"))]
    said = dry_run("--run", "runs/plan", *arguments)
    check_on_file(said, name, tmp_path)
    assert not (tmp_path / "runs").exists(), "nothing is written"


def test_a_plan_of_many_actors_says_in_counts_where_they_start(tmp_path: Path) -> None:
    run, model = str(tmp_path / "run"), str(large_model(tmp_path / "model"))
    given = ["--run", run, "--actors", "64", "--learner", "8gpu", *LARGE, "--model", model]
    said = dry_run(*given, "--hardware", "4x8x141GB", "--cluster", "ray", "learner.zero_stage=3")
    rows = [line for line in said.splitlines() if " actors  " in line]
    assert [line[:9] for line in rows] == ["24 actors", "24 actors", "16 actors"]
    assert all(" 0-7 " in line for line in rows)
    assert "64 actors start together on 3 machines, as soon as the buffer is ready: up to" in said
    assert "--name actor-0" in said and "--name actor-1" not in said
    assert "and so on to actor-63, each with its own name, GPUs and threads" in said
    assert len(said.splitlines()) < 50


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_preset_can_be_planned(path: Path, tmp_path: Path) -> None:
    """In the built-in world, since the preset's own may need a package or data."""
    run, model = str(tmp_path / "run"), str(builtin_policy())
    preset = ["--preset", path.stem, "--env", "workshop", "--model", model, "--run", run]
    said = dry_run(*preset, "--hardware", "8x80GB", "--actors", "4", "--learner", "4gpu")
    assert "learner 0-3  localhost  0-3" in said
    assert "actor-3      localhost  7     90%" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--hardware", "8x80GB"], "--hardware 8x80GB: is only for planning"),
        (["--dry-run", "--hardware", "lots"], "--hardware 'lots': "),
        (["--dry-run", "--hardware", "8x80GB", "--learner", "9gpu"], "has 8 GPUs"),
        (["--dry-run", "--model", "/no/such"], "no config.json"),
        (["--dry-run", "learner.deepspeed=/no/such.json"], "must be a mapping"),
        (["--dry-run", "--env", "nowhere"], "nowhere"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_one_line(
    run: Path, arguments: list[str], why: str
) -> None:
    assert why in refused("--run", run, *arguments) and not run.exists()


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic(
    run: Path, tmp_path: Path
) -> None:
    model = ["--model", large_model(tmp_path / "model"), *LARGE]
    plan = ["--run", run, "--dry-run", "--hardware", "8x64GB", "--learner", "8gpu", *model]
    line = refused(*plan, "--actors", "8")
    assert "a rank needs 14.2 weights" in line and "zero_stage" in line
    line = refused(*plan, "--actors", "32", "learner.zero_stage=3")
    assert "an actor needs 14.2 weights" in line and "fewer --actors" in line
