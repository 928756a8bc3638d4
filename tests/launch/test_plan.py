"""The plan: which machines it takes, and at which addresses its services can be reached."""

from pathlib import Path
from typing import Any

from launch.backends.backend import Backend
from launch.checks.plan_options import PlanOptions
from launch.plan import make_plan
from launch.topology.placement import Plan
from r3l.models.model_path import builtin_policy
from r3l.run.config import load


def plan_of(run: Path, *settings: str, **options: Any) -> Plan:
    config = load(None, [f"model={builtin_policy()}", *settings])
    return make_plan(config, PlanOptions(run, **options))


def test_machines_are_described_or_those_of_the_backend(run: Path) -> None:
    described = plan_of(run, hardware="2x8x80GB", cluster="ray", dry_run=True).topology.machines
    assert [(m.name, len(m.gpus)) for m in described] == [("host-0", 8), ("host-1", 8)]
    assert plan_of(run, dry_run=True).topology.machines == Backend().machines()


def test_actors_that_may_move_to_any_node_make_the_services_reachable(run: Path) -> None:
    plan = plan_of(run, cluster="ray", hardware="2cpu", dry_run=True)
    assert plan.buffer_bind == "tcp://0.0.0.0:*" and plan.keys == run.resolve() / "keys"
    assert plan_of(run, dry_run=True).keys is None
