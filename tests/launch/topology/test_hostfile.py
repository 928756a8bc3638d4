"""Hostfiles: what they say, and whether their machines can be reached."""

import os
from pathlib import Path

import pytest

from launch.topology import hostfile
from r3l.errors import UserError
from tests.launch.fakes import refused


@pytest.mark.parametrize(
    ("text", "ranks", "why"),
    [
        ("", 2, "no machines"),
        ("this-one slots=x", 2, "line 1"),
        ("# c\n127.0.0.1 slots=1\n127.0.0.1 slots=1", 2, "line 3: 127.0.0.1 appears twice"),
        ("127.0.0.1 slots=1", 2, "1 slots for 2 ranks"),
        ("no-such-machine.invalid slots=2", 2, "cannot be resolved"),
        ("192.0.2.1 slots=2", 2, "start r3l-launch on the first machine"),
        ("127.0.0.1 slots=1\n192.0.2.1 slots=1", 2, "pdsh"),
    ],
)
def test_a_bad_hostfile_is_refused_with_its_line(
    tmp_path: Path, run: Path, text: str, ranks: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostfile.shutil, "which", lambda program: None)
    file = tmp_path / "hosts"
    file.write_text(text)
    line = refused("--run", run, "--learner", f"{ranks}gpu", "--hostfile", str(file))
    assert why in line and not run.exists()


def test_machines_that_ssh_cannot_reach_are_named_before_anything_starts(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 slots=1\n192.0.2.1 slots=1\n")
    for program in ("ssh", "pdsh"):
        (tmp_path / program).write_text(
            '#!/bin/sh\ncase "$*" in *192.0.2.1*) echo "Permission denied." >&2; exit 255;; esac'
        )
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    line = refused("--run", run, "--learner", "2gpu", "--hostfile", str(file))
    assert "192.0.2.1 cannot be reached (Permission denied.)" in line and not run.exists()


def test_a_learner_larger_than_its_machines_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 slots=4")
    assert hostfile.read_hosts(file, 2).slots == {"127.0.0.1": 4}
    with pytest.raises(UserError, match="give --learner 4gpu"):
        hostfile.read_hosts(file, 8)
