"""What follows from settings and options."""

from pathlib import Path

import pytest

from launch.checks.draft import Draft, PlanOptions
from r3l.config import load
from r3l.errors import UserError


def draft(run: Path, *settings: str, **options: str) -> Draft:
    return Draft(load(None, list(settings)), PlanOptions(run, **options))  # type: ignore[arg-type]


def test_the_precision_follows_the_device_unless_it_is_chosen(run: Path) -> None:
    assert not draft(run).in_bfloat16 and draft(run, learner="1gpu").in_bfloat16
    assert draft(run, "learner.dtype=bfloat16").in_bfloat16


def test_an_engine_is_split_over_a_number_of_gpus(run: Path) -> None:
    assert draft(run).requested.actor_gpus == 1
    assert draft(run, "actor.engine.tensor_parallel_size=2").requested.actor_gpus == 2
    with pytest.raises(UserError, match="tensor_parallel_size=many: must be a number"):
        _ = draft(run, "actor.engine.tensor_parallel_size=many").requested


def test_the_processes_read_the_folder_of_the_model(run: Path) -> None:
    assert draft(run, "model=builtin").settled(run).model == str(run)
