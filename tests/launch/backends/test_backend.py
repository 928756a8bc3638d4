"""The backend of this machine and a hostfile, which the others change."""

from pathlib import Path

import pytest

from launch.backends.backend import Backend
from launch.backends.process_commands import ProcessCommands
from launch.backends.processes import Children
from launch.checks.draft import Draft, PlanOptions
from launch.topology import hostfile
from launch.topology.machines import HERE, RequestedPlaces
from r3l.config import load


def test_a_backend_starts_the_commands_as_children_here(run: Path) -> None:
    backend, plan = Backend(), Draft(load(), PlanOptions(run)).plan()
    assert type(backend.commands(plan)) is ProcessCommands
    children = backend.reserve(plan)
    assert type(children) is Children and children.logs == run / "logs" and not run.exists()
    assert "buffer.cli serve" in backend.preview(plan) and backend.write_script(plan) == ""


def test_this_machine_or_those_of_a_hostfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, (here,) = Backend().machines(RequestedPlaces(2, 1, "cpu"), None)
    assert hosts is None and here.name == HERE
    monkeypatch.setattr(hostfile.shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(hostfile, "_check_reachable", lambda path, host: None)
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 slots=2\n192.0.2.1 slots=2\n")
    hosts, machines = Backend().machines(RequestedPlaces(2, 1, "cpu"), file)
    assert hosts is not None and hosts.path == file
    assert [machine.name for machine in machines] == ["127.0.0.1", "192.0.2.1"]
