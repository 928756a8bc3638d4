"""What the launcher's tests share as fixtures; their helpers are in fakes.py."""

from pathlib import Path

import pytest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that does not exist yet."""
    return tmp_path / "run"
