"""Commands that are given in a folder with packages of the user's that have the names of r3l's."""

import configparser
import os
import shutil
import signal
import stat
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from buffer import BufferClient
from r3l.files.own_packages import PACKAGES, ROOT
from r3l.models.model_path import builtin_policy

SCRIPT = """#!{python}
import sys
from {module} import {name}
if __name__ == "__main__":
    sys.exit({name}())
"""
"""What pip writes for an entry point."""


SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")
ENTRY_POINTS = SETUP["options.entry_points"]


def console_scripts() -> dict[str, str]:
    lines = ENTRY_POINTS["console_scripts"].split("\n")
    return dict(map(str.strip, line.split("=")) for line in lines if line)


def write_metadata(folder: Path) -> None:
    """What pip writes for importlib.metadata, which reads the first of a name."""
    info = folder / "r3l-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(distribution("r3l").read_text("METADATA") or "")
    groups = [f"[{name}]{lines}\n" for name, lines in ENTRY_POINTS.items()]
    (info / "entry_points.txt").write_text("\n".join(groups))


class Folder:
    """A user's folder. `first`: whether it is on the import path before r3l, as with the common
    PYTHONPATH=."""

    def __init__(self, path: Path, *, first: bool) -> None:
        self.path, self.bin = path / "project", path / "bin"
        self.bin.mkdir()
        for package in PACKAGES:
            (self.path / package).mkdir(parents=True)
            end = f"raise SystemExit('imported the {package} of the user')"
            (self.path / package / "__init__.py").write_text(end)
        shutil.copy(ROOT / "examples" / "door.py", self.path)
        for name, target in console_scripts().items():
            module, _, attribute = target.partition(":")
            text = SCRIPT.format(python=sys.executable, module=module, name=attribute)
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(stat.S_IRWXU)
        write_metadata(path / "metadata")
        paths = [*(["."] if first else []), str(path / "metadata"), str(ROOT)]
        self.env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        own = self.bin / program
        return subprocess.Popen(
            [str(own) if own.exists() else program, *arguments],
            cwd=self.path,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def output(self, program: str, *arguments: str) -> str:
        """What a program prints that ends well."""
        process = self.start(program, *arguments)
        printed, _ = process.communicate(timeout=900)
        assert process.returncode == 0, printed
        return printed


@pytest.fixture(params=[False, True], ids=["beside", "first on the path"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Folder:
    return Folder(tmp_path, first=request.param)


@pytest.mark.parametrize("name", console_scripts())
def test_a_console_script_is_ours(folder: Folder, name: str) -> None:
    assert folder.output(name, "--help").startswith(f"Usage: {name}")


def test_a_users_environment_is_checked_and_planned_by_its_path(folder: Folder) -> None:
    said = folder.output("r3l-env", "check", "door.py:Door")
    assert said == "door.py:Door: passes at seeds 0, 1 and 2; its demonstrations succeed\n"
    model = ("--model", str(builtin_policy()))
    plan = folder.output("r3l-launch", "--env", "door.py:Door", *model, "--dry-run")
    assert "learner" in plan and "buffer" in plan


@pytest.mark.parametrize("what", ["r3l.Task; r3l.make_env", "r3l.BufferClient; r3l.train"])
def test_a_notebook_finds_the_public_names(folder: Folder, what: str) -> None:
    code = f"import r3l; {what}; r3l.make_env('door.py:Door').close(); print('done')"
    assert folder.output(sys.executable, "-c", code) == "done\n"


@pytest.mark.system
def test_the_service_starts(folder: Folder) -> None:
    serve = ("serve", "--store", "store", "--bind", "tcp://127.0.0.1:0", "buffer.map_gib=1")
    process = folder.start("r3l-buffer", *serve)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("r3l-buffer ready "), line + process.stdout.read()
        with BufferClient(line.split()[-1]) as client:
            assert client.stats().tasks == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


OWN_PROCESS = """

class Apart(Door):
    in_process = False
"""


@pytest.mark.system
@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("learner", ["1cpu", "2cpu"])
def test_a_run_with_all_its_processes_is_trained(folder: Folder, learner: str) -> None:
    with (folder.path / "door.py").open("a") as file:
        file.write(OWN_PROCESS)
    # Without a cache, vLLM looks at the model's class in a process of its own.
    folder.env["VLLM_CACHE_ROOT"] = str(folder.path / "cache")
    said = folder.output(
        "r3l-launch", "--preset", "demo", "--env", "door.py:Apart", "--model",
        str(builtin_policy()), "--learner", learner, "--run", "door", "--steps", "2",
        "learner.groups_per_step=2", "eval.tasks=4", "actor.concurrent_requests=8",
    )  # fmt: skip
    assert "step 2/2" in said, said
    folder.env["OMP_NUM_THREADS"] = "2"  # so that the engine's process is not forked
    evaluated = folder.output("r3l-eval", "--run", "door", "--tasks", "2")
    assert "success" in evaluated, evaluated
