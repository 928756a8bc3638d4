"""A working folder is filled as the Dockerfile says, and nothing is written elsewhere."""

from pathlib import Path

import pytest

from envs.agents.task_folders.task_folder import read_task
from envs.agents.task_folders.working_folder import copy_environment, planned
from r3l.errors import UserError
from tests.envs.agents.task_folders.folders import made


def test_files_are_copied_as_the_dockerfile_says(tmp_path: Path) -> None:
    lines = "WORKDIR /app\nCOPY given.txt sub/\nCOPY *.txt one.md\nCOPY data /app/\n"
    folder, work = made(tmp_path, dockerfile=f"FROM a\n{lines}"), tmp_path / "work"
    work.mkdir()
    (folder / "environment" / "data").mkdir()
    (folder / "environment" / "data" / "inner").write_text("x")
    copy_environment(read_task(folder), work)
    found = sorted(str(path.relative_to(work)) for path in work.rglob("*") if path.is_file())
    assert found == ["inner", "one.md", "sub/given.txt"]


def test_without_a_dockerfile_all_files_are_copied(tmp_path: Path) -> None:
    folder, work = made(tmp_path, dockerfile=None), tmp_path / "work"
    work.mkdir()
    copy_environment(read_task(folder), work)
    assert [path.name for path in work.iterdir()] == ["given.txt"]


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task whose environment has a folder d/d with a link to the task's tests."""
    folder = made(tmp_path / "tasks")
    inner = folder / "environment" / "d" / "d"
    inner.mkdir(parents=True)
    (inner / "up").symlink_to("../../../tests")
    return folder


def says(task: Path, *lines: str) -> None:
    text = "\n".join(("FROM a", "WORKDIR /app", *lines))
    (task / "environment" / "Dockerfile").write_text(text)


@pytest.mark.parametrize("to", ["up/", "up/given.txt", "up"])
def test_nothing_is_written_behind_a_link(tmp_path: Path, task: Path, to: str) -> None:
    says(task, "COPY d/d .", f"COPY given.txt {to}")
    with pytest.raises(UserError, match=r"at or behind up, which is a link.*give one"):
        planned(read_task(task))


def test_a_folder_is_not_copied_onto_a_link_nor_a_file_onto_a_folder(task: Path) -> None:
    (task / "environment" / "e" / "up").mkdir(parents=True)
    (task / "environment" / "e" / "up" / "x").write_text("")
    says(task, "COPY d/d .", "COPY e .")
    with pytest.raises(UserError, match="at or behind up"):
        planned(read_task(task))
    says(task, "COPY e .", "COPY given.txt ./up/y", "COPY given.txt up/y/z")
    with pytest.raises(UserError, match="at or behind up/y"):
        planned(read_task(task))


def test_a_link_out_of_the_environment_is_not_copied(task: Path) -> None:
    (task / "environment" / "answers").symlink_to("../tests")
    says(task, "COPY answers .")
    with pytest.raises(UserError, match="environment/answers is a link that leads out of"):
        planned(read_task(task))


def test_modes_are_those_of_the_dockerfile_and_ignored_files_are_left_out(
    tmp_path: Path, task: Path
) -> None:
    rules = "# none\nsecret.txt\n**/*.key\n!d/keep.key\nDockerfile\nd/d/\n"
    for name in ("secret.txt", "a.key", "d/b.key", "d/keep.key"):
        (task / "environment" / name).write_text("")
    (task / "environment" / ".dockerignore").write_text(rules)
    says(task, "COPY --chmod=750 . .")
    (work := tmp_path / "work").mkdir()
    copy_environment(read_task(task), work)
    found = sorted(str(path.relative_to(work)) for path in work.rglob("*") if path.is_file())
    assert found == [".dockerignore", "d/keep.key", "given.txt"]
    assert (work / "given.txt").stat().st_mode & 0o777 == 0o750
    says(task, "COPY a**b .")
    with pytest.raises(UserError, match=r"Dockerfile or \.dockerignore: Invalid pattern"):
        planned(read_task(task))
    says(task, "COPY secret.txt .")
    with pytest.raises(UserError, match=r"copies secret.txt, which is not .*ignore") as bad:
        planned(read_task(task))
    assert str(bad.value).count("env agent") == 1
