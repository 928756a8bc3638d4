"""Files that are whole or absent."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from r3l.errors import UserError
from r3l.files import whole_file
from r3l.files.whole_file import (
    read_json,
    rename_whole,
    replace_folder,
    whole_folder,
    write_json,
    write_whole,
)


def test_a_file_is_replaced_by_all_of_the_new_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in ("one", b"two", [b"thr", memoryview(b"ee")]):
        write_whole(path, content)
    assert path.read_bytes() == b"three" and os.listdir(tmp_path) == ["file"]


def test_a_file_that_cannot_be_written_keeps_its_content_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    def fails() -> Iterator[bytes]:
        yield b"new"
        raise OSError("the disk is full")

    write_whole(tmp_path / "file", "old")
    with pytest.raises(OSError, match="full"):
        write_whole(tmp_path / "file", fails())
    assert (tmp_path / "file").read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_all_bytes_are_on_disk_before_the_name_and_the_name_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, fsync, replace = list[str](), os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        order.append(f"flush {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name[:10]}")
        fsync(descriptor)

    def noted_replace(path: Path, target: Path) -> Path:
        order.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    write_whole(tmp_path / "file", "text")
    assert order == ["flush .building-", "rename", f"flush {tmp_path.name[:10]}"]


def test_a_folder_is_flushed_with_everything_in_it_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    building, flushed = tmp_path / "building", list[str]()
    (building / "inner").mkdir(parents=True)
    (building / "inner" / "file").write_text("x")
    flush = whole_file.flush

    def noted(place: Path) -> None:
        flushed.append(place.name)
        flush(place)

    monkeypatch.setattr(whole_file, "flush", noted)
    rename_whole(building, tmp_path / "final")
    assert flushed == ["inner", "file", "building", tmp_path.name]
    assert (tmp_path / "final" / "inner" / "file").read_text() == "x"


def test_an_older_folder_is_removed_only_when_the_new_one_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final, building = tmp_path / "model", tmp_path / "building"
    for folder, text in ((final, "old"), (building, "new")):
        folder.mkdir()
        (folder / "weights").write_text(text)

    def full(_: Path) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(whole_file, "flush", full)
        replace_folder(building, final)
    assert (final / "weights").read_text() == "old"
    replace_folder(building, final)
    assert (final / "weights").read_text() == "new" and os.listdir(tmp_path) == ["model"]


def test_the_old_folder_comes_back_after_a_kill_between_the_renames(tmp_path: Path) -> None:
    final, building = tmp_path / "model", tmp_path / "building"
    for folder, text in ((final, "old"), (building, "new")):
        folder.mkdir()
        (folder / "weights").write_text(text)
    final.rename(tmp_path / ".replaced-model")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(whole_file, "_flush_whole", Mock(side_effect=KeyboardInterrupt))
        replace_folder(building, final)
    assert (final / "weights").read_text() == "old"


def test_of_a_folder_that_could_not_be_filled_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "out") as building:
        (building / "half").write_text("")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []
    (tmp_path / building.name).mkdir()  # of a process that was killed
    (tmp_path / building.name / "half").write_text("")
    with whole_folder(tmp_path / "out") as building:
        (building / "whole").write_text("")
    assert os.listdir(tmp_path) == ["out"] and os.listdir(tmp_path / "out") == ["whole"]


def test_an_object_is_read_back_a_missing_or_empty_file_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file.json"
    assert read_json(path, "delete it", dict) is None and not caplog.text
    write_json(path, {"a": 1})
    assert read_json(path, "delete it", dict) == {"a": 1}
    path.write_text("")
    assert read_json(path, "delete it", dict) is None
    assert "file.json is empty" in caplog.text


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000, b"\0" * 9])
def test_a_damaged_object_is_refused_by_name_with_what_to_do(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"file\.json: damaged \(.*\); delete it"):
        read_json(path, "delete it", dict)
