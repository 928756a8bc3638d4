"""What a run was started with."""

from launch.inspection import versions


def test_what_is_installed_is_told_by_package() -> None:
    assert {"r3l", "Python", "numpy", "torch", "schema of the store"} <= set(versions.installed())
