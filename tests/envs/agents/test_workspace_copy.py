"""A folder is kept as it was before each call, put back in place, and compared."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from envs.agents import workspace_copy
from envs.agents.workspace_copy import SMALL, first_difference, is_small, listed, run


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    (work / "data" / "empty").mkdir(parents=True)
    (work / "data" / "a.txt").write_text("one")
    (work / "run.sh").write_text("true")
    (work / "run.sh").chmod(0o500)
    (work / "link").symlink_to("data/a.txt")
    return work


def kept_of(work: Path) -> str:
    return str(work.parent / "kept")


def test_every_kind_of_change_is_undone(work: Path) -> None:
    before, kept = listed(work), kept_of(work)
    run("save", str(work), kept, 0, [])
    (work / "data" / "a.txt").write_text("two")
    run("save", str(work), kept, 1, [])
    assert len(list(Path(kept, "objects").iterdir())) == 3  # each content once
    after = listed(work)
    (work / "data" / "empty").rmdir()
    (work / "data" / "empty").write_text("a file now")
    (work / "run.sh").unlink()
    (work / "link").unlink()
    (work / "link").mkdir()
    (work / "link" / "more").symlink_to("/nowhere")
    (work / "data").chmod(0o700)
    for number, wanted in ((0, before), (1, after), (0, before)):
        run("restore", str(work), kept, number, [])
        assert listed(work) == wanted
    assert os.stat(work / "run.sh").st_mode & 0o777 == 0o500


def test_a_file_that_is_open_stays_the_agents(work: Path) -> None:
    run("save", str(work), kept_of(work), 0, [])
    with (work / "data" / "a.txt").open("a") as log:
        print(" more", file=log, flush=True)
        run("restore", str(work), kept_of(work), 0, [])
        print("!", end="", file=log, flush=True)
    assert (work / "data" / "a.txt").read_text() == "one!"


def test_a_change_of_the_same_size_and_moment_is_seen(work: Path) -> None:
    kept, file = kept_of(work), work / "data" / "a.txt"
    run("save", str(work), kept, 0, [])
    times = os.stat(file)
    file.write_text("two")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    run("save", str(work), kept, 1, [])
    run("restore", str(work), kept, 0, [])
    run("restore", str(work), kept, 1, [])
    assert file.read_text() == "two"


def test_a_file_that_has_not_changed_is_not_read_again(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("save", str(work), kept_of(work), 0, [])
    monkeypatch.setattr(workspace_copy, "RACE_NS", -(10**12))
    monkeypatch.setattr(workspace_copy, "_hash", lambda path: pytest.fail(f"{path} is read"))
    run("save", str(work), kept_of(work), 1, [])


def test_the_other_name_of_a_file_and_a_pipe_are_undone(work: Path) -> None:
    before, outside = listed(work), work.parent / "outside"
    run("save", str(work), kept_of(work), 0, [])
    file = work / "data" / "a.txt"
    file.write_text("two")
    outside.hardlink_to(file)
    (work / "run.sh").unlink()
    os.mkfifo(work / "run.sh")
    (work / "new").mkdir()
    os.mkfifo(work / "new" / "pipe")
    run("restore", str(work), kept_of(work), 0, [])
    assert listed(work) == before and outside.read_text() == "two"


def test_a_file_that_vanishes_is_not_kept(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hash_of = workspace_copy._hash

    def vanishing(file: int) -> str:
        if os.readlink(f"/proc/self/fd/{file}").endswith("a.txt"):
            shutil.rmtree(work / "data")  # with the folder that is read next
        return hash_of(file)

    (work / "data" / "sub").mkdir()
    monkeypatch.setattr(workspace_copy, "_hash", vanishing)
    run("save", str(work), kept_of(work), 0, [])
    assert "data/a.txt" not in listed(work)


def identity_of(work: Path) -> list[int]:
    return [work.stat().st_dev, work.stat().st_ino]


@pytest.mark.parametrize("operation", ["save", "restore"])
@pytest.mark.parametrize("how", ["link", "another folder", "its parent is a link", "nothing"])
def test_a_folder_that_the_agent_has_replaced_is_refused_and_nothing_outside_changes(
    how: str, operation: str, tmp_path: Path
) -> None:
    outside, above, kept = tmp_path / "outside", tmp_path / "attempt", str(tmp_path / "kept")
    work = above / "work"
    work.mkdir(parents=True)
    (work / "a.txt").write_text("agent's")
    (outside / "work").mkdir(parents=True)
    for folder in (outside, outside / "work"):
        (folder / "b.txt").write_text("mine")
    run("save", str(work), kept, 0, [], identity := identity_of(work))
    match how:
        case "link":
            work.rename(above / "moved")
            work.symlink_to(outside)
        case "another folder":
            work.rename(above / "moved")
            shutil.copytree(outside, work)
        case "its parent is a link":
            above.rename(tmp_path / "moved")
            above.symlink_to(outside)
        case "nothing":
            shutil.rmtree(work)
    with pytest.raises(SystemExit, match="in place of its folder"):
        run(operation, str(work), kept, 0, [], identity)
    assert sorted(str(path.relative_to(outside)) for path in outside.rglob("*")) == [
        *("b.txt", "work", "work/b.txt")
    ]
    assert (outside / "b.txt").read_text() == (outside / "work" / "b.txt").read_text() == "mine"


def test_folders_that_are_swapped_with_links_during_restores_change_nothing_outside(
    work: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    for n in range(20):
        (work / "data" / f"f{n}").write_text("mine" * 100)
    run("save", str(work), kept_of(work), 0, [])
    swap = (
        "import os, sys\n"
        "while True:\n"
        "    for new in (lambda: os.symlink(sys.argv[1], 'data'), lambda: os.mkdir('data')):\n"
        "        try:\n"
        "            os.rename('data', f'../{os.urandom(8).hex()}')\n"
        "            new()\n"
        "        except OSError: pass\n"
    )
    command = [sys.executable, "-c", swap, str(outside)]
    with subprocess.Popen(command, cwd=work) as agent:
        for _ in range(60):
            with contextlib.suppress(OSError, SystemExit):
                run("restore", str(work), kept_of(work), 0, [])
        agent.kill()
    assert not list(outside.iterdir())


def test_a_file_that_turns_into_a_pipe_a_device_or_another_file_is_not_read(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and the reading."""
    secret = work.parent / "secret"
    secret.write_text("secret")
    file_at = workspace_copy._file_at
    for turn in ("mkfifo", "/dev/zero", str(secret)):

        def turning(folder: int, name: str, turn: str = turn) -> Any:
            if name == "a.txt":
                os.unlink(name, dir_fd=folder)
                if turn == "mkfifo":
                    os.mkfifo(name, dir_fd=folder)
                else:
                    os.symlink(turn, name, dir_fd=folder)
            return file_at(folder, name)

        (work / "data" / "a.txt").unlink()
        (work / "data" / "a.txt").write_text("one")
        monkeypatch.setattr(workspace_copy, "_file_at", turning)
        run("save", str(work), kept_of(work), 0, [])
        monkeypatch.setattr(workspace_copy, "_file_at", file_at)
        objects = list(Path(kept_of(work), "objects").iterdir())
        assert all(copy.read_text() != "secret" for copy in objects)


def test_a_closed_folder_is_put_back_by_an_ordinary_user() -> None:
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        work, kept = Path(folder, "work"), f"{folder}/kept"
        try:
            if root:
                os.seteuid(65534)
            (work / "closed").mkdir(parents=True)
            (work / "closed" / "a").write_text("one")
            (work / "closed").chmod(0o555)
            before = listed(work)
            run("save", str(work), kept, 0, [])
            (work / "closed").chmod(0o755)
            (work / "closed" / "a").write_text("three")
            (work / "closed" / "b").write_text("two")
            (work / "new").mkdir()
            (work / "new" / "c").write_text("two")
            for name in ("closed", "new"):
                (work / name).chmod(0o555)
            run("restore", str(work), kept, 0, [])
            assert listed(work) == before
        finally:
            (work / "closed").chmod(0o755)
            if root:
                os.seteuid(0)


def test_all_that_an_attempt_keeps_is_limited(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = command(work.parent, "open(kept, 'w').write('x' * 4000)")
    sizes = [run("save", str(work), kept_of(work), number, save)["bytes"] for number in range(2)]
    assert sizes[1] > sizes[0] + 4000
    monkeypatch.setattr(workspace_copy, "MOST_BYTES", sizes[1] + 4000)
    with pytest.raises(SystemExit, match="snapshots together take more than"):
        run("save", str(work), kept_of(work), 2, save)


def test_too_large_a_folder_and_a_missing_copy_are_named(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="not saved before"):
        run("restore", str(work), kept_of(work), 3, [])
    monkeypatch.setattr(workspace_copy, "MOST_BYTES", 5)
    with pytest.raises(SystemExit, match="more than 5 bytes"):
        run("save", str(work), kept_of(work), 0, [])


def command(folder: Path, text: str) -> list[str]:
    file = folder / f"command{time.monotonic_ns()}.py"
    file.write_text(f"import os\nkept = os.environ['R3L_SNAPSHOT'] + '/db'\n{text}\n")
    return [sys.executable, str(file)]


def test_commands_keep_what_is_outside(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    world = work.parent / "world"
    world.write_text("1")
    paths = f"world = {str(world)!r}\n"
    save = command(work.parent, f"{paths}open(kept, 'w').write(open(world).read())\nprint('v1')")
    restore = f"{paths}open(world, 'w').write(open(kept).read())\n"
    run("save", str(work), kept_of(work), 0, save)
    world.write_text("2")
    run("restore", str(work), kept_of(work), 0, command(work.parent, f"{restore}print('v1')"))
    assert world.read_text() == "1"
    for text, said in (
        (restore + "print('v2')", "restore printed 'v2', but snapshot printed 'v1'"),
        (restore, "restore printed '', but snapshot printed 'v1'"),
        ("raise SystemExit(3)", "ended with exit code 3"),
        ("open('left.txt', 'w')\nprint('v1')", "left.txt is in the folder, but not in"),
        ("os.unlink('link')\nprint('v1')", "link is missing"),
        ("open('data/a.txt', 'w')\nprint('v1')", "data/a.txt differs from the snapshot"),
    ):
        with pytest.raises(SystemExit, match=said):
            run("restore", str(work), kept_of(work), 0, command(work.parent, text))


def test_equal_listings_have_no_difference(work: Path) -> None:
    assert first_difference(listed(work), listed(work)) == ""


def test_a_folder_is_small_if_its_files_are_few_and_short(work: Path) -> None:
    (work / "pipe").symlink_to("/dev/zero")  # only its own size counts
    assert is_small(str(work))
    (work / "long").write_bytes(bytes(SMALL[1]))
    assert not is_small(str(work))
    (work / "long").unlink()
    for number in range(SMALL[0]):
        (work / f"{number}").touch()
    assert not is_small(str(work))
