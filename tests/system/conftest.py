"""A wheel of the package, and an environment in which it is installed."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from r3l.files.own_packages import PACKAGES, ROOT

ROOMS = ("r3l", *PACKAGES)
PIP = (sys.executable, "-m", "pip")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since a build leaves files in its folder."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for room in ROOMS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, source / room, ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(out), str(source))
    subprocess.run([*PIP, *build], check=True, cwd=out)
    (built,) = out.glob("r3l-*.whl")
    return built


class Installed:
    """An environment with the wheel and, after it on the path, with what these tests have. Its
    folder `project` is where commands are given."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.project = folder / "project"
        self.project.mkdir()
        venv.create(folder / "venv", with_pip=False)
        self.bin = folder / "venv" / "bin"
        paths = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
        self.site = Path(sysconfig.get_path("purelib", "venv", vars=paths))
        (self.site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        install = ("install", "--quiet", "--no-deps", "--ignore-installed", str(wheel))
        own = ("--python", str(self.bin / "python"))
        subprocess.run([*PIP, *own, *install], check=True, cwd=folder, env=self.env)

    def output(self, program: str, *arguments: str) -> str:
        """What a program of the environment prints that ends well."""
        done = subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=self.project,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("user"), wheel)
