"""Evaluations during a run: requests to the buffer, and what is made of the replies."""

from types import SimpleNamespace
from typing import Any

import pytest

from learner import evaluate
from learner.evaluate import Evaluator, parts
from r3l.config import EvalConfig
from r3l.records import Task


def tasks(count: int, size: int = 0) -> list[Task]:
    return [Task(f"t{n}", "corridor", n, {"text": "x" * size}) for n in range(count)]


def test_groups_evicted_before_they_were_read_are_left_out_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    won = SimpleNamespace(trajectories=[SimpleNamespace(reward=1.0, num_steps=2)])
    failed = SimpleNamespace(trajectories=[])
    client: Any = SimpleNamespace(
        stats=lambda: SimpleNamespace(eval_progress={"eval@3": (5, 5)}),
        query=lambda **_: [won, won, won, failed],
        add_tasks=lambda *_, **__: 0,
    )
    evaluator = Evaluator(client, EvalConfig(), tasks(5))
    evaluator.start(3)
    [found] = evaluator.collect()
    assert (found.success, found.tasks, found.failed) == (0.75, 4, 1)
    assert "1 of 5 groups were evicted" in caplog.text and "retention.grace_s" in caplog.text


def test_tasks_are_added_in_messages_within_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tasks(100, size=1000)
    assert list(parts(given)) == [given] and list(parts([])) == []
    monkeypatch.setattr(evaluate, "PART_BYTES", 10_000)
    cut = list(parts(given))
    assert [task for part in cut for task in part] == given
    assert len(cut) > 10 and all(len(part) > 1 for part in cut[:-1])
    assert [len(part) for part in parts(tasks(3, size=20_000))] == [1, 1, 1]
