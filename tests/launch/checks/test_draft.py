"""What follows from settings and options."""

import json
from pathlib import Path

import pytest

from launch.backends.backend import Backend
from launch.checks.draft import Draft, PlanOptions
from r3l.config import load
from r3l.errors import UserError


def draft(run: Path, *settings: str, **options: object) -> Draft:
    return Draft(load(None, list(settings)), PlanOptions(run, **options))


def test_machines_are_described_or_those_of_the_backend(run: Path) -> None:
    machines = draft(run, hardware="2x8x80GB").machines
    assert [(m.name, len(m.gpus)) for m in machines] == [("host-0", 8), ("host-1", 8)]
    assert len(draft(run).machines) == 1 and type(draft(run).backend) is Backend


def test_each_environment_brings_its_first_tasks(run: Path) -> None:
    both = draft(run, "env.others.keys={}", "model=builtin")
    assert {task.env for task in both.tasks} == {"workshop", "keys"} and len(both.tasks) == 4


def test_the_task_with_the_longest_options_is_tried_too(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    rows = [{"prompt": "1 + 1?" + " please" * (n == 7), "answer": "2"} for n in range(9)]
    file = tmp_path / "problems.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    data = f"env.options={{train: {file}, eval: {file}}}"
    (longest,) = draft(run, "env=math", data).longest_task
    assert "please" in longest.options["prompt"]
    assert draft(run, "env.train_tasks=1").longest_task == []


def test_a_property_is_found_once_and_only_when_it_is_asked_for(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = draft(run, "model=/no/such/model")
    with pytest.raises(UserError, match=r"no config.json"):
        _ = missing.settled
    good = draft(run)
    assert good.model is good.model and good.settled.model == str(good.model)


def test_the_precision_follows_the_device_unless_it_is_chosen(run: Path) -> None:
    assert not draft(run).in_bfloat16 and draft(run, learner="1gpu").in_bfloat16
    assert draft(run, "learner.dtype=bfloat16").in_bfloat16


def test_actors_that_may_move_to_any_node_make_the_services_reachable(run: Path) -> None:
    plan = draft(run, cluster="ray", hardware="2cpu", dry_run=True).plan()
    assert plan.buffer_bind == "tcp://0.0.0.0:*" and plan.keys == run.resolve() / "keys"
    assert draft(run).plan().keys is None


def test_an_engine_is_split_over_a_number_of_gpus(run: Path) -> None:
    assert draft(run).requested.actor_gpus == 1
    assert draft(run, "actor.engine.tensor_parallel_size=2").requested.actor_gpus == 2
    with pytest.raises(UserError, match="tensor_parallel_size=many: must be a number"):
        _ = draft(run, "actor.engine.tensor_parallel_size=many").requested
