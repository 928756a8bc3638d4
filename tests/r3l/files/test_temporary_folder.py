"""Temporary folders go, whatever is in them and however their process ended."""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from r3l.files import temporary_folder
from r3l.files.temporary_folder import HELD, empty_folder, held_folder, remove_left, remove_tree
from tests.processes import without_rights


def deep(folder: Path, depth: int) -> None:
    """Makes folders in each other, far deeper than a path may be long."""
    place = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("inner", dir_fd=place)
        outer, place = place, os.open("inner", os.O_RDONLY, dir_fd=place)
        os.close(outer)
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    os.close(place)


@pytest.mark.parametrize("depth", [1, 1200, 5000])
def test_folders_of_any_depth_are_removed_with_few_open_files(depth: int, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    deep(folder, depth)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, limits[1]))
    try:
        remove_tree(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not folder.exists()


def test_every_kind_of_file_is_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    (outside / "inner").mkdir(parents=True)
    (outside / "kept").write_text("kept")
    (folder / "a" / "b").mkdir(parents=True)
    for place in (folder, folder / "a", folder / "a" / "b"):
        (place / "link").symlink_to(outside)
        (place / "file\n").write_text("x")
        os.mkfifo(place / "pipe")
        Path(os.fsdecode(os.fsencode(place) + b"/\xff")).mkdir()
    remove_tree(folder)
    assert not folder.exists() and (outside / "kept").read_text() == "kept"
    (tmp_path / "link").symlink_to(outside)
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "link")  # nothing is there
    assert sorted(os.listdir(tmp_path)) == ["outside"] and sorted(os.listdir(outside))
    (tmp_path / "file").write_text("")
    remove_tree("file", dir_fd=(place_fd := os.open(tmp_path, os.O_RDONLY)))
    os.close(place_fd)
    assert not (tmp_path / "file").exists()


def test_closed_folders_are_removed_by_an_ordinary_user() -> None:
    script = (
        "import os, sys, tempfile\n"
        "from pathlib import Path\n"
        "from r3l.files.temporary_folder import remove_tree\n"
        "top = Path(tempfile.mkdtemp())\n"
        "(top / 'a' / 'b' / 'c').mkdir(parents=True)\n"
        "(top / 'a' / 'b' / 'file').write_text('x')\n"
        "for name in ('a/b/c', 'a/b', 'a', ''):\n"
        "    (top / name).chmod(0)\n"
        "remove_tree(top)\n"
        "print(top.exists())\n"
    )
    assert without_rights(script) == "False"


def test_a_folder_is_emptied_wherever_it_has_been_moved(tmp_path: Path) -> None:
    (tmp_path / "folder" / "a").mkdir(parents=True)
    opened = os.open(tmp_path / "folder", os.O_RDONLY)
    (tmp_path / "folder").rename(tmp_path / "moved")
    empty_folder(opened)
    os.close(opened)
    assert not list((tmp_path / "moved").iterdir())


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_holds_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held, lock = held_folder("mine-")
    script = (
        "import sys, time, tempfile\n"
        "from r3l.files.temporary_folder import held_folder\n"
        "print(held_folder('mine-')[0], flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        (left / "inner").mkdir()
        unheld, young = tmp_path / "mine-old", tmp_path / f"mine-young{HELD}"
        for folder in (unheld, young):
            folder.mkdir()
        for folder in (held, left, unheld):
            os.utime(folder, (0, 0))
        remove_left("mine-")
        assert held.exists() and left.exists()
        other.kill()
    remove_left("mine-")
    assert held.exists() and not left.exists()
    assert unheld.exists()  # of a program that holds no lock
    assert young.exists()  # it may be about to be locked
    monkeypatch.setattr(temporary_folder, "LOCKED_S", -1.0)
    os.close(lock)
    remove_left("mine-")
    assert not held.exists() and not young.exists()
