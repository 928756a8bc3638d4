"""Files with one JSON object on each line."""

import json
from pathlib import Path
from typing import Any

import pytest

from r3l.errors import UserError
from r3l.run.files import json_lines
from r3l.run.files.json_lines import GrowingFile, append, encoded, newest_first, read, thin


def number(value: dict[str, Any]) -> int:
    return int(value["n"])


def test_lines_are_read_back_in_their_order_and_no_file_has_none(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert read(path, number) == json_lines.Lines([])
    for n in range(3):
        append(path, {"n": n})
    assert read(path, number).values == [0, 1, 2]


@pytest.mark.parametrize("half", ['{"n": 7', "x" * 200_000])
def test_half_a_line_at_the_end_is_ignored_and_replaced_by_the_next_one(
    tmp_path: Path, half: str
) -> None:
    path = tmp_path / "lines"
    append(path, {"n": 1})
    with path.open("a") as file:
        file.write(half)
    assert read(path, number) == json_lines.Lines([1], cut=True)
    append(path, {"n": 2})
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_file_that_is_half_a_line_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("half")
    append(path, {"n": 1})
    assert read(path, number) == json_lines.Lines([1])


def test_lines_that_cannot_be_read_are_left_out_counted_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "lines"
    good = [encoded({"n": 1}), encoded({"m": 1}), encoded({"n": []}), encoded({"n": 2})]
    changed = good[0].replace(b"1", b"7", 1)
    path.write_bytes(b"".join([*good[:3], changed, b'no line\n[]\n{"n": 1}\n\xff\n\n', good[3]]))
    assert read(path, number) == json_lines.Lines([1, 2], damaged=8)
    assert "8 damaged lines are left out" in caplog.text


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path, number)
    with pytest.raises(UserError, match="cannot be read"):
        list(newest_first(tmp_path))


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("half", [b"", b"half", b"a longer half"])
def test_lines_are_read_from_the_end_in_blocks_of_any_size(
    tmp_path: Path, size: int, half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "TAIL_BYTES", size)
    path = tmp_path / "lines"
    assert list(newest_first(path)) == []
    for lines in ([], [b"one"], [b"one", b"", b"three and more", b"4"]):
        path.write_bytes(b"".join(line + b"\n" for line in lines) + half)
        assert list(newest_first(path)) == lines[::-1]


def test_no_more_of_a_file_is_read_than_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "TAIL_BYTES", 100)
    path = tmp_path / "lines"
    path.write_bytes(b"0123456789\n" * 100)
    lines = newest_first(path)
    assert next(lines) == b"0123456789"
    path.write_bytes(b"")  # what was not read is gone
    assert len([*lines]) < 10


def test_a_growing_file_gives_each_complete_line_once(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("old\n")
    new, whole = GrowingFile(path), GrowingFile(path, 0)
    with path.open("a") as file:
        file.write("a\nb")
    assert new.new() == [b"a"] and whole.new() == [b"old", b"a"]
    with path.open("a") as file:
        file.write("\n\n")
    assert new.new() == [b"b", b""] and new.new() == []


def test_a_large_file_loses_every_second_line_of_its_older_half_and_no_reader_misses_one(
    tmp_path: Path,
) -> None:
    path, seen = tmp_path / "lines", list[int]()
    reader = GrowingFile(path)
    for n in range(400):
        append(path, {"n": n} if n % 50 else {"kept": 1, "n": n})
        thin(path, 4096, b'{"n"')
        if n % 3 == 0:
            seen += [json.loads(line)["n"] for line in reader.new()]
    values = read(path, number).values
    assert seen == list(range(400)) and path.stat().st_size <= 4096
    assert values[0] == 0 and {0, 50, 100, 150, 200, 250, 300, 350} <= set(values)
    assert values[-30:] == list(range(370, 400)) and values == sorted(values)
    late = GrowingFile(path)
    append(path, {"n": 400})
    assert [json.loads(line)["n"] for line in late.new()] == [400]
