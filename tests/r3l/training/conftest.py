"""What the tests of a step share as fixtures; their helpers are in fakes.py."""

from pathlib import Path

import pytest

from tests.r3l.training.fakes import tiny_folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model, without a tokenizer."""
    return tiny_folder(tmp_path_factory.mktemp("model"))
