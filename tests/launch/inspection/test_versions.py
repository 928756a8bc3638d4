"""What a run was started with."""

from pathlib import Path

from launch.inspection import versions
from r3l.files.run_folder import RunFolder


def test_a_run_tells_what_it_was_started_with_wherever_it_is_looked_at(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_versions(versions.installed())
    told = versions.of(RunFolder(tmp_path))
    assert {"r3l", "Python", "numpy", "torch", "schema of the store"} <= set(told)
    RunFolder(tmp_path).write_versions(told | {"torch": "0.1"})
    assert versions.of(RunFolder(tmp_path))["torch"] == "0.1"


def test_a_run_without_the_file_shows_what_is_installed_and_says_so(tmp_path: Path) -> None:
    told = versions.of(RunFolder(tmp_path))
    assert told["note"] == "of this installation; the run has no versions.json" and "r3l" in told
