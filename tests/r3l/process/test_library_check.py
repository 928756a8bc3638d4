"""A stand-in library that lacks what is used."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from r3l.errors import UserError
from r3l.process.library_check import check_library

SOURCE = """
class Engine:
    def pause(self, mode): ...
    def anything(self, **options): ...
    def __init__(self): self.groups_flat = []
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "standin.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "standin"
    sys.modules.pop("standin", None)


@pytest.mark.parametrize(
    "entry",
    [
        "standin:Engine",
        "standin:Engine.pause(mode)",
        "standin:Engine.anything(a, b)",
        "standin:Engine~groups_flat",
        "standin:~groups_flat",
    ],
)
def test_what_is_there_is_accepted(library: str, entry: str) -> None:
    check_library(["standin"], "1.0", [entry])


@pytest.mark.parametrize(
    "entry",
    [
        "standin:Motor",
        "standin:Engine.resume",
        "standin:Engine.pause(mode, clear_cache)",
        "standin:Engine~groups_round",
        "standin.inner:Engine",
        "absent:Engine",
    ],
)
def test_what_is_missing_is_named_with_the_package_its_version_and_the_known_one(
    library: str, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"standin-cpu": "2.0"}
    monkeypatch.setattr("r3l.process.library_check._version", lambda name: versions.get(name, ""))
    with pytest.raises(UserError) as refused:
        check_library(["standin", "standin-cpu"], "1.0", ["standin:Engine", entry])
    said = f"standin-cpu 2.0: lacks {entry}, which r3l uses; install standin-cpu==1.0"
    assert str(refused.value) == said
