"""How fast a store grows, from the settings, and when its disk is full."""

from pathlib import Path

import pytest

from launch.topology import store_growth
from r3l.run.config import RunConfig

SIZE = {
    "learner": {"groups_per_step": 64, "steps": 100},
    "algorithm": {"name": "grpo", "group_size": 8},
    "actor": {"max_model_len": 8192},
}
WHOLE = "store: up to 75.5 MB a step (64 groups of 8 attempts of 8192 tokens), 7.55 GB in 100 steps"


@pytest.mark.parametrize(
    ("free_gb", "buffer", "then"),
    [
        (50, {}, ""),
        (2, {}, "; its disk, with 1.93 GB free, is full after step 25: set buffer.retention or "
                "buffer.archive, or choose a larger disk"),
        (50, {"map_gib": 1}, "; buffer.map_gib=1 is full after step 14: raise it, or set "
                             "buffer.retention or buffer.archive"),
        (2, {"retention": {"gib": 1}}, ""),
        (2, {"archive": "s3://bucket/run"}, "; closed groups move to s3://bucket/run"),
        (0, {}, "; its disk, with 0 B free, is full after step 0: set buffer.retention or "
                "buffer.archive, or choose a larger disk"),
    ],
)  # fmt: skip
def test_a_plan_says_what_is_stored_and_when_there_is_no_room_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_gb: int, buffer: dict, then: str
) -> None:
    monkeypatch.setattr(store_growth, "free_bytes", lambda run: free_gb * 1_000_000_000)
    config = RunConfig.model_validate(SIZE | {"buffer": buffer})
    assert store_growth.text(config, tmp_path) == WHOLE + then
