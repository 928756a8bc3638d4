"""Text files that a user named."""

import os
import re
from pathlib import Path

import pytest

from r3l.errors import UserError
from r3l.files.user_file import SETTINGS_LIMIT, read_text


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_text(path, f"--config {path}", "give a YAML file")
    return str(caught.value).removeprefix(f"--config {path}: ")


def test_a_file_that_may_never_end_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for endless in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/stdin")):
        if endless.exists() and not endless.is_file():
            assert refusal(endless).startswith("is a pipe ")


def test_what_is_no_short_text_is_refused_with_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_bytes(b" " * (SETTINGS_LIMIT + 1))
    assert re.fullmatch(r"not UTF-8 .*; give a YAML file", refusal(tmp_path / "bytes"))
    assert refusal(tmp_path / "long").startswith(f"has {SETTINGS_LIMIT + 1} bytes, ")
    for unreadable in (tmp_path, tmp_path / "none"):
        assert re.match(r"cannot be read \(.*; give a YAML file", refusal(unreadable))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "marked").write_bytes("\ufeffseed: 1\u2028".encode())
    assert read_text(tmp_path / "marked", "it", "give a file") == "seed: 1\u2028"
