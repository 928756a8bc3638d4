"""Paths and text files that a user named."""

import os
import re
from pathlib import Path

import pytest

from r3l.errors import UserError
from r3l.files.user_file import SETTINGS_LIMIT, json_lines, read_text, user_path


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


@pytest.mark.parametrize(
    ("line", "said"),
    [("{'a': 1}", "line 3: is not JSON"), ("[1]", r"line 3: must be a JSON object, not \[1\]"),
     ("3", "line 3: must"), ("{", "line 3: is not"), ("[" * 9999, "line 3: is not JSON"),
     ('{"a": 1} {"b": 2}', "line 3: is not JSON")],
)  # fmt: skip
def test_a_line_that_is_no_object_is_named_by_its_number(
    tmp_path: Path, line: str, said: str
) -> None:
    file, first = tmp_path / "data.jsonl", '\ufeff{"a": "x\u2028y"}\n\n'
    file.write_text(f"{first}{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=said):
        json_lines(file)
    file.write_text(f'{first}{{"b": 2}}\n', encoding="utf-8")
    assert json_lines(str(file)) == [{"a": "x\u2028y"}, {"b": 2}]


def test_a_line_that_lacks_a_key_is_named(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "a", "queue": "b"}\n\n{"text": "a", "id": 3}\n{}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"line 3: has no 'queue'; it has text, id$"):
        json_lines(file, "text", "queue")
    with pytest.raises(UserError, match=r"line 4: has no 'text'; it has nothing$"):
        json_lines(file, "text")
    assert len(json_lines(file)) == 3


def test_text_in_latin_1_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes('{"a": 1}\n{"a": "Zoë"}\n'.encode("latin-1"))
    said = refusal(tmp_path / "old")
    assert said.startswith("not UTF-8 text (line 2); ") and "iconv -f latin1 -t utf-8" in said


def test_a_path_that_cannot_exist_is_refused() -> None:
    for name in ("~nobody_of_that_name/x", "x" * 300):
        with pytest.raises(UserError, match="not a valid path"):
            user_path(name)
