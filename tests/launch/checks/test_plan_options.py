"""What follows from a run's options."""

from pathlib import Path

import pytest

from launch.checks.plan_options import PlanOptions
from r3l.errors import UserError
from r3l.run.config import load


def test_an_engine_is_split_over_a_number_of_gpus(run: Path) -> None:
    options = PlanOptions(run)
    split = [f"actor.engine.tensor_parallel_size={gpus}" for gpus in ("2", "many")]
    assert options.places(load(None).actor).actor_gpus == 1
    assert options.places(load(None, split[:1]).actor).actor_gpus == 2
    with pytest.raises(UserError, match=r"tensor_parallel_size=many: .*number"):
        options.places(load(None, split[1:]).actor)
