"""Checksums notice a changed value, text or file."""

import json
import math
from pathlib import Path

import pytest

from r3l.errors import UserError
from r3l.files import checksums
from r3l.files.checksums import (
    check_text,
    of_file,
    text_with_checksum,
    with_checksum,
    without_checksum,
)
from r3l.run.config import load


def test_values_are_read_back_without_their_checksum_however_they_are_spaced() -> None:
    values = {"a": [1.5e-300, None, True], "ä": {"b": "\ud800"}, "c": math.inf, "big": 1 << 70}
    assert without_checksum(json.loads(json.dumps(with_checksum(values), indent=3))) == values


@pytest.mark.parametrize("values", [[], {}, {"a": 1}, {**with_checksum({"a": 1}), "a": 2}])
def test_values_without_a_checksum_or_with_another_are_refused(values: object) -> None:
    with pytest.raises(ValueError, match=r"not an object|checksum"):
        without_checksum(values)


def test_settings_with_a_checksum_are_read_and_refused_after_a_change(tmp_path: Path) -> None:
    path, text = tmp_path / "config.yaml", text_with_checksum("seed: 3\nlearner:\n  steps: 7\n")
    path.write_text(text)
    assert load(path).learner.steps == 7
    for changed in (text.replace("7", "8"), text[:-3], text.replace("one\n", "one\nlog: []\n")):
        path.write_text(changed)
        with pytest.raises(UserError, match=r"config\.yaml: damaged"):
            load(path)
    path.write_text(text.partition("\n")[2].replace("7", "8"))  # edited by hand
    assert load(path).learner.steps == 8
    check_text("seed: 3\n")


def test_a_file_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"some bytes")
    whole = of_file(tmp_path / "file")
    monkeypatch.setattr(checksums, "BLOCK", 3)
    assert of_file(tmp_path / "file") == whole == checksums.of_text("some bytes")
