"""The backend of this machine, which the others change."""

from pathlib import Path

from launch.backends.backend import Backend
from launch.backends.process_commands import ProcessCommands
from launch.backends.processes import Children
from launch.checks.plan_options import PlanOptions
from launch.preparation import prepare
from launch.topology.machines import HERE
from r3l.run.config import load


def test_a_backend_starts_the_commands_as_children_here(run: Path) -> None:
    backend, plan = Backend(), prepare(load(), PlanOptions(run))
    assert type(backend.commands(plan)) is ProcessCommands
    children = backend.reserve(plan)
    assert type(children) is Children and children.logs == run / "logs" and not run.exists()
    assert "buffer.cli serve" in backend.preview(plan) and backend.write_script(plan) == ""


def test_it_places_a_run_on_this_machine() -> None:
    (here,) = Backend().machines()
    assert here.name == HERE
