"""Real task files next to the checkout, if there are any; tests that need them skip without."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "data"


def shared(name: str) -> Path:
    """The path of a file of that folder; skips the test where there is none."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path
