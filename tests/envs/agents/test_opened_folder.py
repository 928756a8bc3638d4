"""A folder stays the one that was opened, whatever is put in its place or into it."""

import os
from pathlib import Path

import pytest

from envs.agents.opened_folder import OpenedFolder


@pytest.mark.parametrize("kind", ["nothing", "file", "link", "fifo", "folder"])
def test_a_new_file_takes_the_place_of_whatever_is_there(kind: str, tmp_path: Path) -> None:
    outside, place = tmp_path / "outside", tmp_path / "folder"
    outside.write_text("kept")
    place.mkdir()
    opened, there = OpenedFolder(place), place / "stdin"
    match kind:
        case "file":
            there.write_text("old")
        case "link":
            there.symlink_to(outside)
        case "fifo":
            os.mkfifo(there)
        case "folder":
            (there / "deep").mkdir(parents=True)
    fd = opened.file("stdin", "[é]")
    assert not there.is_symlink() and there.read_text() == "[é]" and outside.read_text() == "kept"
    os.close(fd)
    opened.pipe("stdin")
    assert there.is_fifo()
    opened.close()


def test_a_folder_that_was_moved_is_still_the_one(tmp_path: Path) -> None:
    outside, place = tmp_path / "outside", tmp_path / "folder"
    for folder in (outside, place):
        folder.mkdir()
    (outside / "kept").write_text("kept")
    opened = OpenedFolder(place)
    place.rename(tmp_path / "moved")
    place.symlink_to(outside)
    os.close(opened.file("stdin"))
    inner = opened.inner("mcp-x")
    inner.link("work", "/nowhere")
    assert os.listdir(outside) == ["kept"]
    assert len(os.listdir(tmp_path / "moved")) == 2 and (opened.fd != inner.fd)
    inner.close()
    opened.delete()
    assert not os.path.lexists(place) and not os.listdir(tmp_path / "moved")
    assert os.listdir(outside) == ["kept"]
