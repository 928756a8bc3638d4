"""What rank 0 says while it waits, and what it does when its batch was taken from it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from learner import rank0
from learner.rank0 import Rank0
from learner.watchdog import note_hang
from r3l.config import load
from r3l.errors import DrawExpired


class Service:
    """A buffer without groups, in which draw 7 has expired."""

    def __init__(self, owner: Rank0) -> None:
        self.owner = owner

    def draw(
        self, count: int, version: int, *, wait_s: float, explain: Callable[[str], object]
    ) -> None:
        explain(f"0 of {count} groups are there; waits for actors to finish 3")
        self.owner.stop()

    def commit(self, draw_id: int, step: int, version: int) -> None:
        raise DrawExpired(f"draw {draw_id} expired", draw_id=draw_id)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(rank0, "WARN_AFTER_S", -1.0)
    waiting: Any = Rank0.__new__(Rank0)
    waiting.client, waiting.stopped = Service(waiting), False
    waiting.config = SimpleNamespace(learner=SimpleNamespace(groups_per_step=4))
    waiting.trainer = SimpleNamespace(world=1)
    return waiting


def test_a_learner_that_waits_says_what_is_missing_and_who_is_to_bring_it(
    waiting: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert waiting.draw(0) is None
    assert "for a batch: 0 of 4 groups are there; waits for actors to finish 3" in caplog.text


def test_a_learner_counts_how_often_the_ones_before_it_hung(tmp_path: Path) -> None:
    note_hang(tmp_path, "micro-batch 1 of 2", "itself")
    anything: Any = SimpleNamespace()
    counts = Rank0(*[anything] * 4, load(None), ([], []), tmp_path).counts
    assert counts == {"hangs": 1}


def test_a_step_whose_batch_others_had_meanwhile_is_not_published(waiting: Any) -> None:
    draw = SimpleNamespace(draw_id=7, groups=())
    waiting.publish = lambda *_: pytest.fail("weights of a step that is in no ledger")
    with pytest.raises(DrawExpired, match="draw 7 expired"):
        waiting.finish_step(draw, 1, {})
