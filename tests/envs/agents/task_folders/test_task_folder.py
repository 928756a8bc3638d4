"""Task folders are read as Harbor reads them, and what cannot be played is named."""

import os
from pathlib import Path

import pytest

from envs.agents.task_folders.task_folder import filled, read_task, task_folders
from r3l.errors import UserError
from tests.envs.agents.task_folders.folders import TOML, made

EXAMPLES = Path(__file__).parents[4] / "examples" / "agents" / "harbor"


def test_a_task_has_its_limits_and_its_variables(tmp_path: Path) -> None:
    toml = TOML + '[verifier.env]\nJUDGE = "x"\n[environment.env]\nMODE = "${MODE:-fast}"\n'
    task = read_task(made(tmp_path, toml=toml, dockerfile="FROM a\nENV A=1\nWORKDIR /data/x\n"))
    assert (task.agent_s, task.tests_s, task.workdir) == (50.0, 20.0, "/data/x")
    assert task.variables == {"A": "1", "MODE": "${MODE:-fast}"}
    assert task.tests_variables == {"JUDGE": "x"} and not task.containers


def test_defaults_are_harbors(tmp_path: Path) -> None:
    task = read_task(made(tmp_path, toml='version = "1.0"\n', dockerfile=None))
    assert (task.agent_s, task.tests_s, task.workdir, task.image) == (None, 600.0, "/app", None)


def test_lines_that_mark_a_benchmark_are_not_shown(tmp_path: Path) -> None:
    marked = "<!-- harbor-canary GUID 1 -->\n# A canary line\n\nDo it.\n\nWell.\n"
    assert read_task(made(tmp_path, instruction=marked)).instruction == "Do it.\n\nWell."


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"test": None}, r"has no tests/test\.sh; write there what gives the reward"),
        ({"instruction": None}, r"has no instruction\.md; write there"),
        ({"instruction": "  \n"}, r"instruction\.md is empty"),
        ({"toml": "[agent\n"}, r"task\.toml: is not TOML \(.*\); correct it"),
        ({"toml": 'schema_version = "9.1"'}, r"schema_version '9\.1': r3l reads 1\.0 to 1\.4"),
        ({"toml": "agent = 3"}, r"agent is 3; write a table \[agent\]"),
        ({"toml": "[verifier]\ntimeout_sec = -1"}, r"verifier\.timeout_sec is -1; write seconds"),
        ({"toml": "[agent]\ntimeout_sec = nan"}, r"agent\.timeout_sec is nan"),
        ({"toml": "[agent]\ntimeout_sec = true"}, r"agent\.timeout_sec is True"),
        ({"toml": "[agent]\ntimeout_s = 9"}, r"agent\.timeout_s is not a key of H.* timeout_sec"),
        ({"toml": "[environment.env]\nA = 1"}, r"environment\.env is .*; write NAME = 'text'"),
        ({"toml": "[environment]\nos = 'windows'"}, r"is for 'windows'; r3l plays tasks for linux"),
        ({"toml": f"a = {'1' * 5000}"}, r"task\.toml: is not TOML"),
        ({"toml": f"a = {'[' * 5000}"}, r"task\.toml: is not TOML"),
        ({"toml": "[environment.env]\n'A=B' = 'x'"}, r"environment\.env: 'A=B' cannot be set; wri"),
        ({"toml": '[verifier.env]\nA = "x\\u0000"'}, r"verifier\.env: 'A' cannot be set"),
        ({"dockerfile": "FROM a\nENV A=x\0y\n"}, r"environment/Dockerfile: 'A' cannot be set"),
        ({"toml": "[environment]\nworkdir = 'app'"}, r"workdir is 'app'; write an absolute path"),
        ({"toml": "[environment]\nworkdir = 3"}, r"workdir is 3; write an absolute path"),
        ({"toml": "[[steps]]\nname = 'one'"}, r"has several steps, which r3l does not play"),
    ],
)
def test_a_task_that_cannot_be_played_is_named_with_its_path(
    tmp_path: Path, changed: dict[str, str | None], what: str
) -> None:
    folder = made(tmp_path, **changed)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=what) as raised:
        read_task(folder)
    said = str(raised.value)
    assert said.startswith(f"env agent: task {folder}: ") and "\n" not in said
    assert said.count("env agent") == 1


def test_a_link_out_of_the_task_is_refused_and_one_inside_is_not(tmp_path: Path) -> None:
    folder = made(tmp_path)
    (folder / "tests" / "data").symlink_to("../environment")
    read_task(folder)
    (folder / "tests" / "key").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match=r"tests/key is a link to '/etc/passwd', outside"):
        read_task(folder)
    (folder / "tests" / "key").unlink()
    (folder / "environment" / "home").symlink_to("../..")
    with pytest.raises(UserError, match=r"environment/home is a link to '\.\./\.\.', outside"):
        read_task(folder)


def test_a_task_without_toml_or_environment_is_named(tmp_path: Path) -> None:
    one, other = made(tmp_path, "one"), made(tmp_path, "other")
    (one / "task.toml").unlink()
    for path in ("Dockerfile", "given.txt"):
        (other / "environment" / path).unlink()
    (other / "environment").rmdir()
    for folder, what in ((one, r"has no task\.toml; add one"), (other, "has no environment/")):
        with pytest.raises(UserError, match=what):
            read_task(folder)


def test_a_folder_is_a_task_or_holds_tasks(tmp_path: Path) -> None:
    one = made(tmp_path, "one")
    other = made(tmp_path, "other")
    (tmp_path / ".git").mkdir()
    assert task_folders(str(tmp_path)) == [one, other] and task_folders(str(one)) == [one]
    with pytest.raises(UserError, match="is a folder without tasks; name one in Harbor's format"):
        task_folders(str(one / "tests"))


@pytest.mark.parametrize(
    ("dockerfile", "toml", "why"),
    [
        ("FROM a\nWORKDIR /app\nCOPY x /etc/x\n", "", "copies to /etc/x, outside of /app"),
        ("FROM a\nWORKDIR /root\n", "", "its working directory /root is a folder of this machine"),
        ("FROM a\nCOPY --from=b x x\n", "", "its Dockerfile has 'COPY --from=b x x'"),
        ("FROM a\nCOPY --parents a/b .\n", "", "its Dockerfile has 'COPY --parents a/b .'"),
        (None, "[environment]\nworkdir = '/tests/x'", "/tests/x is one of Harbor's own paths"),
        (None, "[environment]\nworkdir = '/'", "its working directory / is a folder of this"),
        (None, "[verifier]\nenvironment_mode = 'separate'", "its tests have a container of their"),
        (None, "[[environment.mcp_servers]]\nname = 'a'", "environment.mcp_servers are those"),
        (None, "[environment.healthcheck]\ncommand = 'x'", "environment.healthcheck waits"),
    ],
)
def test_what_needs_a_container_is_said(
    tmp_path: Path, dockerfile: str | None, toml: str, why: str
) -> None:
    assert why in read_task(made(tmp_path, dockerfile=dockerfile, toml=toml)).containers


def test_several_containers_need_containers(tmp_path: Path) -> None:
    folder = made(tmp_path)
    (folder / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    assert "environment/docker-compose.yaml starts several" in read_task(folder).containers


def test_variables_are_those_of_this_process_or_defaults() -> None:
    given = {"A": "${HERE}", "B": "${GONE:-b}", "C": "plain $X"}
    assert filled(given, {"HERE": "h"}, "task") == {"A": "h", "B": "b", "C": "plain $X"}
    with pytest.raises(UserError, match=r"task: task\.toml: A needs the environment variable HERE"):
        filled(given, {}, "task")


def test_our_examples_are_whole_and_need_no_container() -> None:
    tasks = [read_task(folder) for folder in task_folders(str(EXAMPLES))]
    assert [task.folder.name for task in tasks] == ["csv-report", "fix-script", "parse-log"]
    for task in tasks:
        assert not task.containers and os.access(task.solution, os.X_OK)


def test_a_working_directory_below_a_folder_of_this_machine_needs_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = made(tmp_path, toml="[environment]\nworkdir = '/mine/x'", dockerfile=None)
    assert not read_task(task).containers
    monkeypatch.setattr("os.path.lexists", lambda path: path == "/mine")
    assert "working directory /mine/x is a folder of this machine, or" in read_task(task).containers


def test_a_link_to_a_task_is_refused(tmp_path: Path) -> None:
    elsewhere = made(tmp_path / "else")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "task").symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"tasks/task: is a link to .*; put the folder itself"):
        task_folders(str(tmp_path / "tasks"))
    assert task_folders(str(tmp_path / "tasks" / "task")) == [elsewhere]


def test_files_that_no_attempt_can_get_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path)
    odd = folder / "tests" / "odd"
    for target, what in (("odd", "which leads nowhere"), ("nosuch", "which leads nowhere"),
                         (".", "leads to a folder that contains it")):  # fmt: skip
        odd.symlink_to(target)
        with pytest.raises(UserError, match=rf"task {folder}: .*tests/odd .*{what}"):
            read_task(folder)
        odd.unlink()
    os.mkfifo(odd)
    with pytest.raises(UserError, match=r"tests/odd is a pipe, socket or device; leave it out"):
        read_task(folder)
    odd.unlink()
    monkeypatch.setattr("envs.agents.task_folders.task_folder.MOST_BYTES", 9)
    with pytest.raises(UserError, match=r"tests has \d+ bytes, more than 9; shorten it"):
        read_task(folder)
