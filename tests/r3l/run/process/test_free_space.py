"""Room on a run's disk and in shared memory."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from r3l.errors import UserError
from r3l.run.process import free_space
from r3l.run.process.free_space import MIB, check_free_space, lacking_space


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[Path, int]:
    """Free MiB by folder, the test's own and that of shared memory."""
    shared = tmp_path / "shm"
    shared.mkdir()
    sizes = {tmp_path: 10_000, shared: 1000}
    usage = lambda path: SimpleNamespace(free=sizes[path] * MIB)  # noqa: E731
    monkeypatch.setattr(free_space.shutil, "disk_usage", usage)
    monkeypatch.setattr(free_space, "SHARED_MEMORY", shared)
    return sizes


def test_a_run_needs_room_for_its_store_checkpoints_and_models(
    free: dict[Path, int], tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "first"  # which is not there yet
    free[tmp_path] = 128 + 4 * 50
    check_free_space(run, 50 * MIB, 4)
    with pytest.raises(UserError) as refused:
        check_free_space(run, 51 * MIB, 4)
    said = str(refused.value)
    assert said.startswith(f"run {run}: ") and "328 MiB free" in said and "needs 332 MiB " in said
    assert " --run" in said and "lower learner.keep_checkpoints" in said


def test_a_run_needs_shared_memory(free: dict[Path, int], tmp_path: Path) -> None:
    free[tmp_path / "shm"] = 15
    with pytest.raises(UserError, match=r"shm: 15 MiB .* 16 MiB"):
        check_free_space(tmp_path, 0, 4)


def test_what_a_run_is_short_of_is_one_line(free: dict[Path, int], tmp_path: Path) -> None:
    assert lacking_space(tmp_path) == ""
    free[tmp_path] = 63
    assert lacking_space(tmp_path).startswith("63 MiB ") and str(tmp_path) in lacking_space(
        tmp_path
    )
    free |= {tmp_path: 64, tmp_path / "shm": 2}
    assert lacking_space(tmp_path).startswith(f"{tmp_path / 'shm'}: 2 MiB are free")
