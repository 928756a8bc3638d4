"""The batch script of a run, whole, and as bash runs it with stand-ins for SLURM's commands."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from launch.cli import main
from tests.launch.backends.on_file import check_on_file
from tests.launch.fakes import refused


def script(*arguments: str) -> str:
    said = CliRunner().invoke(main, ["--dry-run", "--cluster", "slurm", *arguments])
    assert said.exit_code == 0, said.output
    return said.output.rstrip("\n") + "\n"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("slurm-1x2gpu", ["--hardware", "2x80GB", "--actors", "1", "--learner", "1gpu"]),
        ("slurm-3x8gpu", ["--hardware", "3x8x80GB", "--actors", "4", "--learner", "2x8gpu",
                          "--actor-gpus", "2"]),
    ],
)  # fmt: skip
def test_a_script_is_the_one_on_file_and_bash_can_read_it(
    name: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    said = script("--run", "plan", *arguments)
    subprocess.run(["bash", "-n"], input=said, text=True, check=True)
    check_on_file(said, name, tmp_path)


def test_the_script_lies_in_the_run_folder_with_its_settings_and_keys(
    run: Path, tmp_path: Path
) -> None:
    arguments = ["--run", str(run), "--cluster", "slurm", "--hardware", "2x2cpu", "--actors", "2"]
    said = CliRunner().invoke(main, arguments)
    assert said.output == f"sbatch {run / 'job.sbatch'}\n", said.output
    assert (run / "config.yaml").exists() and (run / "keys" / "client.json").exists()
    assert "--keys" in (run / "job.sbatch").read_text()


def test_nodes_must_be_described(run: Path) -> None:
    line = refused("--run", run, "--cluster", "slurm")
    assert "add --hardware" in line and not run.exists()


STAND_IN = """#!/bin/bash
# srun: notes the step, then plays it.
step="$*"
case "$step" in *buffer.cli*) name=buffer ;; *learner.cli*) name=learner ;; *) name=actor ;; esac
trap 'echo "$name asked to end" >>"$NOTES"; exit 0' TERM
[ $name = actor ] && sleep "${SLOW:-0}"
echo "$$.0" >"$logs/.step-${name/actor/actor-0}"
echo "$name" >>"$NOTES"
if [ $name = learner ]; then
  [ "$(grep -c '^learner$' "$NOTES")" = 1 ] && exit "$FIRST_CODE"
  while ! grep -q actor "$NOTES"; do sleep 0.05; done
  if [ "$HANGS" ]; then kill -TERM "$PPID_OF_JOB"; else exit 0; fi
fi
while :; do sleep 0.05; done
"""


def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **env: str) -> tuple[int, list[str]]:
    """(exit code of the job, what its steps noted)."""
    bin_, notes, run = tmp_path / "bin", tmp_path / "notes", tmp_path / "run"
    bin_.mkdir()
    (run / "logs").mkdir(parents=True)
    (bin_ / "srun").write_text(STAND_IN)
    (bin_ / "scontrol").write_text("#!/bin/sh\necho node-7\n")
    (bin_ / "scancel").write_text("#!/bin/bash\n[ $1 = --signal=TERM ] && kill -TERM ${2%.0}\n")
    for file in bin_.iterdir():
        file.chmod(0o755)
    job = script("--run", str(run), "--hardware", "4cpu", "--actors", "1")
    given = {"PATH": f"{bin_}:{os.environ['PATH']}", "NOTES": str(notes), "HANGS": ""} | env
    given |= {"SLURM_JOB_NODELIST": "node-7", "FIRST_CODE": env.get("FIRST_CODE", "0")}
    job = job.replace("sleep 5", "sleep 0.1")
    job = job.replace("nodes=(", "export PPID_OF_JOB=$$\nnodes=(", 1)
    done = subprocess.run(
        ["bash", "-c", job], env=os.environ | given, timeout=60, capture_output=True, check=False
    )
    return done.returncode, notes.read_text().split("\n")[:-1]


def test_a_learner_that_dies_is_started_again_and_its_end_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, notes = played(tmp_path, monkeypatch, FIRST_CODE="1")
    assert code == 0 and notes.count("learner") == 2
    assert notes[-2:] == ["actor asked to end", "buffer asked to end"]


def test_a_learner_with_wrong_settings_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, notes = played(tmp_path, monkeypatch, FIRST_CODE="2")
    assert code == 2 and notes.count("learner") == 1 and "buffer asked to end" in notes


def test_an_actor_that_starts_slowly_is_asked_to_end_once_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, notes = played(tmp_path, monkeypatch, FIRST_CODE="2", SLOW="3")
    assert code == 2 and notes[-2:] == ["actor asked to end", "buffer asked to end"]


def test_a_logger_without_its_package_is_refused_before_the_job(tmp_path: Path) -> None:
    if importlib.util.find_spec("wandb"):
        pytest.skip("wandb is installed")
    run = tmp_path / "run"
    line = refused("--run", run, "--cluster", "slurm", "--hardware", "2x2cpu", "log=[wandb]")
    assert "wandb" in line and not run.exists()


def test_slurms_signal_before_the_time_limit_ends_the_learner_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, notes = played(tmp_path, monkeypatch, FIRST_CODE="1", HANGS="1")
    asked = [note for note in notes if note.endswith("asked to end")]
    assert code == 0 and notes.count("learner") == 2
    assert asked == ["learner asked to end", "actor asked to end", "buffer asked to end"]
