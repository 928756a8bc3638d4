"""Options that cannot be followed are refused in one line."""

import fcntl
from pathlib import Path

import pytest

from tests.launch.fakes import refused


def test_a_run_of_another_launcher_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 7")
    lock = (tmp_path / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    line = refused("--run", str(tmp_path), "--resume", "learner.lr=1")
    assert "another r3l-launch" in line
    assert (tmp_path / "config.yaml").read_text() == "seed: 7"
    lock.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--hardware", "8x80GB"), "--hardware 8x80GB: is only for planning"),
        (("--hardware", "8x80GB", "--cluster", "ray"), "--hardware 8x80GB: is only for planning"),
        (("--dry-run", "--hardware", "2x8x80GB"), "2x8x80GB: describes several machines"),
    ],
)
def test_machines_are_described_only_for_what_starts_later_and_several_for_a_cluster(
    run: Path, options: tuple[str, ...], why: str
) -> None:
    assert why in refused("--run", run, *options) and not run.exists()


def test_a_run_without_torch_is_refused_before_it_starts(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.checks.of_command_line.find_spec", lambda name: None)
    line = refused("--run", run, "--check")
    assert "torch is not installed; run " in line and not run.exists()
    assert "--extra-index-url https://download.pytorch.org/whl/cpu 'r3l[cpu]'" in line


def test_a_nearly_full_disk_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r3l.run.process.free_space.free_bytes", lambda path: 100 << 20)
    line = refused("--run", run)
    assert f"run {run}: its disk has 100 MiB" in line and not run.exists()


def test_every_checkpoint_that_is_kept_needs_its_room(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needed(*overrides: str) -> int:
        line = refused("--run", run, *overrides)
        return int(line.partition("the run needs ")[2].partition(" MiB")[0])

    monkeypatch.setattr("r3l.run.process.free_space.free_bytes", lambda path: 1 << 20)
    one, three = (needed(f"learner.keep_checkpoints={n}") for n in (1, 3))
    assert three > one > needed("learner.lora={rank: 4}", "learner.keep_checkpoints=3")
    without = needed("learner.keep_checkpoints=1", "learner.keep_best=false")
    copy = (one - without) / 2  # best/, and the weights under evaluation
    assert abs((three - one) - 2 * 3 * copy) <= 3


def test_every_rank_needs_a_device_and_a_group(run: Path) -> None:
    assert "--learner 640gpu: this machine has " in refused("--run", run, "--learner", "640gpu")
    line = refused("--run", run, "--learner", "2cpu", "learner.groups_per_step=1")
    assert "2 ranks" in line and "learner.groups_per_step" in line and not run.exists()
