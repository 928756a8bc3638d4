"""The machines of the local backend."""

from pathlib import Path

import pytest

from launch.backends.local import Local
from launch.topology import hostfile
from launch.topology.machines import HERE
from launch.topology.requested import RequestedPlaces


def test_this_machine_or_those_of_a_hostfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, (here,) = Local().machines(RequestedPlaces(2, 1, "cpu"), None)
    assert hosts is None and here.name == HERE
    monkeypatch.setattr(hostfile.shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(hostfile, "_check_reachable", lambda path, host: None)
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 slots=2\n192.0.2.1 slots=2\n")
    hosts, machines = Local().machines(RequestedPlaces(2, 1, "cpu"), file)
    assert hosts is not None and hosts.path == file
    assert [machine.name for machine in machines] == ["127.0.0.1", "192.0.2.1"]
