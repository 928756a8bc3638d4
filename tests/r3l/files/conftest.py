"""A hub that serves what a test gives it, and an empty cache."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from r3l.files import hub_cache
from tests.r3l.files.hub_server import Hub, serving


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub()) as served:
        monkeypatch.setattr(hub_cache, "cache", lambda: tmp_path / "hub")
        monkeypatch.setattr(hub_cache, "endpoint", lambda: served.address)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield served
