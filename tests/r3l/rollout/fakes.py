"""Groups explored in a corridor, by a policy that opens the second door only if it is advised."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from r3l.algorithms.facts import LeaseFacts
from r3l.records import ReflectionRecord, SlotResult, Task
from r3l.rollout.exploration import Exploration
from r3l.rollout.group import explore_group
from r3l.run.config import RunConfig, load
from tests.r3l.fakes import Corridor, ScriptedPolicy

TASK = Task("corridor/0", "corridor", seed=7)


def reflection(outcome: str = "failure", step: int | None = 1, advice: str = "say b") -> str:
    success = outcome == "success"
    return json.dumps(
        {
            "trajectory_summary": "tried",
            "root_cause_analysis": None if success else "wrong",
            "trajectory_outcome": outcome,
            "improvement_suggestion": None if success else advice,
            "retry_from_step": step,
        }
    )


def learner_of_advice(thought: str = reflection()) -> ScriptedPolicy:
    """Answers "x" at door 1 unless advised; reflects with `thought`."""

    def reply(prompt: str) -> str:
        if "You review one attempt" in prompt:
            return thought
        door = int(prompt.rpartition("door ")[2].split()[0])
        right = "abc"[door]
        return right if door != 1 or "say b" in prompt else "x"

    return ScriptedPolicy(reply)


def always_right(prompt: str) -> str:
    """Answers every door as the corridor wants it."""
    return "abc"[int(prompt.rpartition("door ")[2].split()[0])]


def exploration(
    policy: Any,
    config: RunConfig,
    task: Task = TASK,
    make_env: Callable[[Task], Any] = lambda task: Corridor(),
    **more: Any,
) -> Exploration:
    """A group with the plan and the decoding of a run."""
    facts = LeaseFacts(task.task_id, 0, 0, (), (), np.random.default_rng)
    plan = more.pop("plan", None) or config.algorithm.plan(facts)
    decoding, make = config.actor.decoding(), lambda: make_env(task)
    return Exploration(task, policy, make, plan, decoding, **more)


def explored(
    policy: ScriptedPolicy, *overrides: str, **more: Any
) -> tuple[list[SlotResult], dict[str, ReflectionRecord]]:
    """Explores a group of one attempt and its retry. Returns its results and reflections."""
    config, make = (
        load(None, ["algorithm.group_size=2", *overrides]),
        more.pop("make_env", Corridor),
    )
    x = exploration(policy, config, make_env=lambda task: make(), **more)
    return asyncio.run(explore_group(config.algorithm.explore, x)), x.reflections


def explore(policy: ScriptedPolicy, *overrides: str, **more: Any) -> list[SlotResult]:
    return explored(policy, *overrides, **more)[0]


class Faulty(Corridor):
    """Answers one call with something an environment must not say."""

    def __init__(self, call: str, answer: Any) -> None:
        super().__init__()
        self.fault = call, answer

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__
        if name in ("reset", "step", "close", "feedback") and own("fault")[0] == name:
            answer = own("fault")[1]

            def faulty(*_: Any, **__: Any) -> Any:
                if isinstance(answer, BaseException):
                    raise answer
                return answer

            return faulty
        return own(name)
