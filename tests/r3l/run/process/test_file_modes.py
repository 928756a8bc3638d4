"""Who may read what the commands write."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from r3l.errors import UserError
from r3l.run.process.file_modes import set_file_modes
from tests.buffer.fakes import Served

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def readable_by_others(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.stat().st_mode & OTHERS}


@pytest.mark.system
def test_a_served_store_is_private_unless_the_umask_is_given(tmp_path: Path) -> None:
    for name, env in (("private", {}), ("shared", {"R3L_UMASK": "022"})):
        served = Served(tmp_path / name, env=env)
        assert served.stop() == 0
    assert readable_by_others(tmp_path / "private") == set()
    assert not (tmp_path / "private").stat().st_mode & OTHERS
    assert readable_by_others(tmp_path / "shared") >= {"data.mdb"}


@pytest.mark.system
@pytest.mark.parametrize("module", ["launch.cli", "launch.eval_cli", "actors.cli", "learner.cli"])
def test_every_command_starts_with_private_files(module: str, tmp_path: Path) -> None:
    """Each is run up to its first error, with a umask that it refuses."""
    train = ["train", "--run", "r"] if module == "learner.cli" else []
    given = ["--config", "none", "--buffer", "tcp://127.0.0.1:1", "--weights", "tcp://127.0.0.1:2"]
    options = [] if module.startswith("launch") else [*train, *given]
    done = subprocess.run(
        [sys.executable, "-m", module, *options],
        env=os.environ | {"R3L_UMASK": "rw"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "R3L_UMASK='rw': must be octal" in done.stderr, done.stderr


@pytest.mark.parametrize("mask", ["8", "-1", "0777", "u=rw"])
def test_a_umask_that_is_none_or_takes_the_users_own_rights_is_refused(
    mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("R3L_UMASK", mask)
    with pytest.raises(UserError, match=r"R3L_UMASK=.*000 to 077"):
        set_file_modes()
