"""What a user gets: a wheel, installed into an environment that has what r3l requires.

It is used in a folder without a checkout, by the commands and the Python of that environment.
"""

import shutil
import zipfile
from pathlib import Path

import pytest

from r3l.files.own_packages import ROOT, SCRIPTS
from tests.system.conftest import ROOMS, Installed

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1200)]
INTO_HERE = (
    "import sys, r3l; [getattr(r3l, name) for name in r3l.PUBLIC]; "
    "print(*{m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] in sys.argv[1:]})"
)


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as opened:
        found = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert found == files


def test_every_public_name_comes_from_the_wheel(installed: Installed) -> None:
    files = installed.output("python", "-c", INTO_HERE, *ROOMS).split()
    assert len(files) > 50 and all(Path(file).is_relative_to(installed.site) for file in files)


def test_every_command_is_there(installed: Installed) -> None:
    for name in SCRIPTS:
        command = name.replace("_", "-")
        assert installed.output(command, "--help").startswith(f"Usage: {command}")


def test_the_ten_lines_of_the_readme_run(installed: Installed) -> None:
    page = (ROOT / "docs" / "library.md").read_text("utf-8")
    lines = page.split("```python\n")[1].split("```")[0]
    (installed.project / "lines.py").write_text(lines.replace('"workshop", 200', '"workshop", 2'))
    assert installed.output("python", "lines.py").count("array(") == 2


def test_an_environment_is_checked_and_a_run_is_planned_and_trained(installed: Installed) -> None:
    shutil.copy(ROOT / "examples" / "door.py", installed.project)
    checked = installed.output("r3l-env", "check", "door.py:Door")
    assert checked.startswith("door.py:Door: passes")
    assert "learner" in installed.output("r3l-launch", "--dry-run")
    run = ("--run", "door", "--env", "door.py:Door", "--steps", "1", "--model")
    warmed = ("warmup", "--env", "door.py:Door", "--steps", "5", "--out", "warm")
    installed.output("r3l-learner", *warmed)
    few = ("learner.groups_per_step=2", "eval.tasks=4", "actor.concurrent_requests=8")
    trained = installed.output("r3l-launch", "--preset", "demo", *run, "warm", *few)
    assert "step 1/1" in trained
    assert "success" in installed.output("r3l-eval", "--run", "door", "--tasks", "2")
