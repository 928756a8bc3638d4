"""Demonstrators made of an environment's `demonstration`."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from envs.base import Demonstrating, Skill
from envs.builtin.workshop import Workshop
from envs.demonstrations import Demonstrated, demonstrating, warmup_tasks
from envs.testing import check_env
from r3l.errors import UserError
from r3l.rollout.env_interface import EnvSpec
from r3l.rollout.reflection import parse
from tests.envs.test_registry import DOOR

EXAMPLES = Path(__file__).parents[2] / "examples"
ERRING = Skill(mistakes=0.5)


def played(env: Demonstrating, skill: Skill, rng: random.Random) -> float:
    total, ended = 0.0, False
    while not ended and len(env.actions) < env.spec.max_steps:  # type: ignore[attr-defined]
        _, reward, terminated, truncated, _ = env.step(env.demonstrate(skill, rng))
        total, ended = total + reward, terminated or truncated
    return total


@pytest.mark.parametrize("name", ["countdown", "countdown-steps", f"{EXAMPLES}/door.py:Door"])
def test_one_method_makes_a_demonstrator_that_succeeds(name: str) -> None:
    env = demonstrating(name)
    assert isinstance(env, Demonstrating)
    for task in warmup_tasks(name, {}, 20):
        env.reset(seed=task.seed, options=dict(task.options))
        assert played(env, Skill(), random.Random(0)) == 1.0
        assert env.reflection()["trajectory_outcome"] == "success"
    words = " ".join(env.vocabulary())
    assert (env.spec.system_prompt in words and "numbers" in words) or "door" in words


def test_a_reflection_names_the_first_step_that_was_not_the_plans_and_its_action() -> None:
    env = demonstrating("countdown-steps")
    rng, failures = random.Random(3), 0
    for task in warmup_tasks("countdown-steps", {}, 40):
        env.reset(seed=task.seed, options={})
        plan = list(env.plan)  # type: ignore[attr-defined]
        total = played(env, ERRING, rng)
        actions = env.actions  # type: ignore[attr-defined]
        thought = parse(json.dumps(env.reflection()), len(actions))
        if total < 1:
            failures += 1
            pivot = thought.retry_from_step
            assert pivot is not None and actions[:pivot] == plan[:pivot]
            assert actions[pivot] != plan[pivot] and thought.improvement_suggestion == plan[pivot]
    assert failures > 5


def test_advice_is_followed_and_a_snapshot_continues_where_it_was() -> None:
    env = demonstrating("countdown-steps")
    env.reset(seed=7, options={})
    first, second, _ = env.plan  # type: ignore[attr-defined]
    sloppy = Skill(mistakes=1.0)
    assert env.demonstrate(sloppy, random.Random(0), advice=first) == first
    observation = env.step(first)[0]
    state = env.snapshot()
    env.step("nonsense")
    env.restore(state)
    assert env.demonstrate(Skill(), random.Random(0)) == second
    assert env.actions == [first] and observation  # type: ignore[attr-defined]


def test_an_environment_of_its_own_kind_keeps_its_demonstrator() -> None:
    assert isinstance(demonstrating("workshop"), Workshop)
    check_env(f"{EXAMPLES}/door.py:Door")


def test_an_environment_without_demonstrations_is_told_which_method_is_missing(
    tmp_path: Path,
) -> None:
    file = tmp_path / "door.py"
    file.write_text(DOOR)
    with pytest.raises(UserError, match=r"a method demonstration\(\)"):
        demonstrating(f"{file}:Door")
    empty = tmp_path / "empty.py"
    empty.write_text(DOOR + "\n    def demonstration(self):\n        return []\n")
    env = demonstrating(f"{empty}:Door")
    assert isinstance(env, Demonstrated)
    with pytest.raises(UserError, match="seed 5 is empty"):
        env.reset(seed=5, options={})


class Stairs:
    """Three steps up; `replans` as the subclass says."""

    spec = EnvSpec("stairs", "Go up.", max_steps=20)

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> Any:
        self.height = 0
        return "at 0", {}

    def step(self, action: str) -> Any:
        self.height += {"up": 1, "down": -1}.get(action, 0)
        top = self.height == 3
        return f"at {self.height}", float(top), top, False, {}

    def demonstration(self) -> list[str]:
        return ["up"] * (3 - self.height) if self.height < 3 else []

    def close(self) -> None: ...


class Replanning(Stairs):
    replans = True

    def demonstration(self) -> list[str]:
        return [*["come on", "up"] * (3 - self.height)]


def test_a_demonstrator_finds_its_way_back_after_a_mistake_if_it_can_plan_anew() -> None:
    env = Demonstrated(Replanning(), [])
    env.reset(seed=0, options={})
    for action in ("come on", "down", "down"):
        env.step(action)
    assert env.rest == ["come on", "up"] * 5
    assert played(env, Skill(), random.Random(0)) == 1.0
    assert env.reflection()["retry_from_step"] == 1
    assert env.reflection()["improvement_suggestion"] == "up"
    env = Demonstrated(Stairs(), [])
    env.reset(seed=0, options={})
    env.step("down")
    assert env.rest == ["up"] * 3  # goes on with the old plan
