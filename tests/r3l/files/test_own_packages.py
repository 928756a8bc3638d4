"""r3l imports its own packages, whatever lies on the import path before them."""

import configparser
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from r3l.files import own_packages
from r3l.files.own_packages import ENGINE, PACKAGES, ROOT, SCRIPTS, import_path, module_command

ENTRY_POINTS = "options.entry_points"


def python(code: str, folder: Path, **variables: str) -> str:
    """What `code` prints, and its last line of stderr. `folder`: the current one, first on the
    path."""
    code = f"import sys; sys.path.insert(1, {str(ROOT)!r}); {code}"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    return ran.stdout + ran.stderr.strip().rpartition("\n")[2]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with packages of the names of r3l's, which end the process that imports them."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('the user\\'s {name}')")
    return tmp_path


def test_a_claimed_process_imports_each_package_from_our_folder(hostile: Path) -> None:
    claim = "from r3l.files.own_packages import claim, PACKAGES; claim(); claim()"
    each = "from importlib import import_module as i; print(*[i(n).__file__ for n in PACKAGES])"
    files = python(f"{claim}; {each}", hostile).split()
    assert files == [str(ROOT / name / "__init__.py") for name in PACKAGES]
    finders = "print(sum('OwnPackages' in str(type(f)) for f in sys.meta_path))"
    assert python(f"{claim}; {finders}", hostile) == "1\n"


@pytest.mark.parametrize("code", ["", None])
def test_a_package_of_the_users_that_was_imported_first_is_named(
    tmp_path: Path, code: str | None
) -> None:
    (tmp_path / "envs").mkdir()
    if code is not None:
        (tmp_path / "envs" / "__init__.py").write_text(code)
    first = "kept = sys.path[:]; sys.path[:] = ['']; import envs; sys.path[:] = kept"
    said = python(f"{first}; import r3l; r3l.make_env", tmp_path)
    assert "r3l needs its package envs" in said and str(tmp_path / "envs") in said
    assert said.endswith("rename yours")


def test_the_launcher_is_imported_beside_folders_of_our_names(hostile: Path) -> None:
    keep = "import os; os.remove('launch/__init__.py'); os.rmdir('launch')"
    assert python(f"{keep}; import launch.cli, envs; print(envs.__file__)", hostile) == (
        f"{ROOT / 'envs' / '__init__.py'}\n"
    )


def test_every_console_script_is_an_attribute_and_nothing_else() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = setup[ENTRY_POINTS]["console_scripts"].split("\n")
    found = dict(map(str.strip, line.split("=")) for line in lines if line)
    names = {name.replace("_", "-"): f"{own_packages.__name__}:{name}" for name in SCRIPTS}
    assert found == names
    for name, module in SCRIPTS.items():
        assert getattr(own_packages, name) is import_module(module).main
    with pytest.raises(AttributeError, match="no attribute 'r3l_door'"):
        _ = own_packages.r3l_door


def test_the_plugin_of_vllm_touches_no_engine_of_another_program(hostile: Path) -> None:
    code = "from r3l.files.own_packages import vllm_plugin as p; before = {*sys.modules}; p(); "
    code += "print({*sys.modules} - before, len(sys.meta_path))"
    usual = python("print(len(sys.meta_path))", hostile).strip()
    assert python(code, hostile) == f"set() {usual}\n"
    registered = "from r3l.files.own_packages import vllm_plugin as p; p(); " + (
        "from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as f; "
        "print('zmq' in f._registry)"
    )
    assert "True\n" in python(registered, hostile, **{ENGINE: "1"})


def test_a_module_that_is_started_in_a_users_folder_is_ours(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(hostile), "/elsewhere"]))
    assert import_path() == os.pathsep.join([str(ROOT), str(hostile), "/elsewhere"])
    ran = subprocess.run(
        [*module_command("buffer.cli"), "--help"],
        cwd=hostile,
        env=os.environ | {"PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
    )
    assert ran.stdout.startswith("Usage: r3l-buffer") and not ran.stderr
    monkeypatch.delenv("PYTHONPATH")
    assert import_path() == str(ROOT)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_says_the_version_of_r3l(script: str) -> None:
    printed = CliRunner().invoke(getattr(own_packages, script), ["--version"])
    assert (printed.exit_code, printed.output) == (0, f"r3l {version('r3l')}\n")
