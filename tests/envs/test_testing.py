"""The conformance suite finds each fault it names, and says where."""

import json
import random
from typing import Any

import pytest

from envs import EnvSpec, testing
from envs.testing import check_env
from tests.envs.test_registry import built_in


class Counter:
    """Conformant: say the sum's next number three times."""

    spec = EnvSpec("counter", "Count.", max_steps=5)

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.at, self.done = seed % 7, 0
        return f"after {self.at}", {}

    def step(self, action: str) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        right = action == str(self.at + 1)
        self.at, self.done = self.at + right, self.done + right
        over = self.done == 3
        return f"after {self.at}", float(over), over, False, {}

    def snapshot(self) -> Any:
        return json.dumps([self.at, self.done]).encode()

    def restore(self, state: bytes) -> None:
        self.at, self.done = json.loads(state)

    def feedback(self) -> Any:
        return f"{self.done} of 3"

    def demonstration(self) -> Any:
        return [str(self.at + k) for k in (1, 2, 3)]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("name", built_in())
def test_the_built_in_worlds_pass(name):
    check_env(name, seeds=range(10))


def test_a_correct_environment_passes():
    check_env(Counter(), seeds=range(10))


class Drawing(Counter):
    def reset(self, *, seed, options=None):
        return f"{random.random()}", super().reset(seed=seed)[1]


class Remembering(Counter):
    past = 0

    def step(self, action):
        self.past += 1
        observation, *rest = super().step(action)
        return f"{observation} {self.past}", *rest


class Forgetful(Counter):
    def restore(self, state):
        self.at = 0


class Numbering(Counter):
    def reset(self, *, seed, options=None):
        super().reset(seed=seed)
        return self.at, {}


class NotANumber(Counter):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


class Fragile(Counter):
    def step(self, action):
        int(action)
        return super().step(action)


class Four(Counter):
    def step(self, action):
        return super().step(action)[:4]


class Dumb(Counter):
    def demonstration(self):
        return ["1", "1", "1"]


class Long(Counter):
    def demonstration(self):
        return ["0"] * 6


class Mute(Counter):
    def step(self, action):
        return "", *super().step(action)[1:]


class Parted(Counter):
    def step(self, action):
        return *super().step(action)[:4], {"rewards": {"right part": 1.0}}


class Breeding(Counter):
    def reset(self, *, seed, options=None):
        import subprocess

        if seed == 0:
            self.child = subprocess.Popen(["sleep", "30"])
        return super().reset(seed=seed)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Drawing, "seed 0, reset: .*observation was '0"),
        (Remembering, "seed 0, step 0: .*observation was"),
        (Forgetful, "after the snapshot at step"),
        (Numbering, "seed 0, reset: .*observation is int"),
        (NotANumber, "seed 0, step 0: .*reward is nan"),
        (Fragile, "raised ValueError"),
        (Four, "step 0: .*step returned tuple"),
        (Dumb, "demonstration earns 0.0 of 1.0"),
        (Long, "demonstration has 6 actions, .* 5"),
        (Mute, "is empty"),
        (Parted, r"step 0: info\[.rewards.\] is .*right part.* must be at most 16 numbers"),
    ],
)
def test_each_fault_is_named_with_its_seed_and_step(kind, says):
    with pytest.raises(AssertionError, match=says):
        check_env(kind(), seeds=(0, 1, 2, 3))


class MuteAtTheEnd(Counter):
    def step(self, action):
        return "", float(action == str(self.at + 1)), True, False, {}

    def demonstration(self):
        return [str(self.at + 1)]


def test_what_follows_the_last_turn_may_be_empty():
    check_env(MuteAtTheEnd(), seeds=(0, 1, 2, 3))


def test_a_process_that_outlives_close_is_found(monkeypatch):
    monkeypatch.setattr(testing, "CLOSE_S", 0.2)
    env = Breeding()
    with pytest.raises(AssertionError, match="leaves processes running"):
        check_env(env, seeds=(0,))
    env.child.kill()
    env.child.wait()
