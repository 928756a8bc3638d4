"""The plan of a run."""

from pathlib import Path

from launch.topology.run_plan import Plan
from r3l.config import load
from tests.launch.fakes import topology


def test_a_plan_counts_its_actors() -> None:
    bind = "tcp://127.0.0.1:*"
    assert Plan(load(), Path("run"), topology(3), bind, bind, resume=False).actors == 3
