"""What has no place is refused in one line."""

from pathlib import Path

import pytest

from tests.launch.fakes import refused


def test_a_nearly_full_disk_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r3l.process.free_space._free", lambda path: 100 << 20)
    line = refused("--run", run)
    assert f"run {run}: 100 MiB are free on its disk, it needs " in line and not run.exists()


def test_every_rank_needs_a_device_and_a_group(run: Path) -> None:
    assert "--learner 640gpu: this machine has " in refused("--run", run, "--learner", "640gpu")
    line = refused("--run", run, "--learner", "2cpu", "learner.groups_per_step=1")
    assert "2 ranks" in line and "learner.groups_per_step" in line and not run.exists()
