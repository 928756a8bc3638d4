"""Tasksets of the real package `verifiers`, in an interpreter of its own.

`make test-agents` makes that interpreter and runs these tests; without it they are skipped.
"""

import os
from pathlib import Path

import pytest

from envs import registry
from r3l.errors import UserError
from r3l.views.tape import read_tape
from tests.actors.gateway.test_real_clients import ROOT, played

PYTHON = os.environ.get(
    "R3L_VERIFIERS_PYTHON", str(ROOT / "build" / "verifiers" / "bin" / "python")
)

pytestmark = pytest.mark.skipif(not Path(PYTHON).exists(), reason="make test-agents runs these")


@pytest.mark.parametrize(("taskset", "turns"), [("r3l_products", 1), ("r3l_tool_products", 2)])
def test_a_taskset_plays_itself_and_is_trained_on_what_the_engine_read(
    taskset: str, turns: int
) -> None:
    made, policy, _ = played(f"verifiers:{taskset}", {"python": PYTHON})
    assert made.reward == 1.0 and made.extra.reward_parts == {"right": 1.0, "turns": turns}
    ids, spans = made.token_ids.tolist(), made.step_spans.tolist()
    assert len(spans) == len(policy.sampled) == turns
    for start, end in spans:
        assert policy.sampled[tuple(ids[start:end])] == ids[:start]


def test_the_calls_of_an_untrained_seat_are_played_and_not_trained() -> None:
    config = {"id": "user-sim", "user": {"max_turns": 2}, "persona": "USER: {scenario} {done}"}
    made, policy, _ = played("verifiers:r3l_products", {"python": PYTHON, "config": config})
    calls = read_tape(made.extra.tape)
    users = [c for c in calls if c.messages[0]["content"].startswith("USER: Question")]
    assert len(users) >= 1 and not any(call.trained for call in users)
    assert made.reward == 1.0 and made.num_steps == sum(call.trained for call in calls) >= 1
    assert not made.extra.segments and "USER" not in made.system
    assert len(policy.sampled) == len(calls)


def test_its_tasks_are_listed_once() -> None:
    source = registry.task_source("verifiers:r3l_products", python=PYTHON)
    listed = [task for split in ("train", "eval") for task in source.tasks(split, 3, 0)]
    assert sorted({task.seed for task in listed}) == [0, 1, 2]
    assert {task.env for task in listed} == {"verifiers:r3l_products"}


@pytest.mark.parametrize(
    ("taskset", "config", "what"),
    [
        ("nosuch", {}, "taskset 'nosuch' not found"),
        ("r3l_products", {"taskset": {"oops": 1}}, "taskset.oops"),
    ],
)
def test_what_cannot_be_played_is_named(taskset: str, config: dict[str, object], what: str) -> None:
    with pytest.raises(UserError, match=f"env verifiers:{taskset}: .*{what}"):
        registry.make_any(f"verifiers:{taskset}", python=PYTHON, config=config)
