"""Corridors as environments by path: as they were, with other verifiers, with other words."""

import random
from typing import Any

from tests.r3l.fakes import Corridor as Original

Reply = tuple[str, float, bool, bool, dict[str, Any]]


class Corridor(Original):
    """As it was."""

    in_process = True


class Lenient(Corridor):
    """A third of the reward for each right answer; the last reaction is another one."""

    def step(self, action: str) -> Reply:
        said, _, done, cut, _ = super().step(action)
        right = sum(a == b for a, b in zip(self.given, self.answers, strict=False))
        info = {"rewards": {"right": 1}, "scores": {"doors": len(self.given)}}
        return said + "!" * done, right / 3 if done else 0.0, done, cut, info


class Strict(Corridor):
    """Half a success at most."""

    def step(self, action: str) -> Reply:
        said, reward, *rest = super().step(action)
        return (said, reward / 2, *rest)  # type: ignore[return-value]


class Renamed(Corridor):
    """Says something else after an x at door 1."""

    def step(self, action: str) -> Reply:
        said, *rest = super().step(action)
        return (said.replace("after x", "past x"), *rest)  # type: ignore[return-value]


class Longer(Corridor):
    """Has one more door."""

    def __init__(self) -> None:
        super().__init__("abcd")


class Shorter(Corridor):
    """Has two doors."""

    def __init__(self) -> None:
        super().__init__("ab")


class Broken(Corridor):
    """Cannot judge an attempt with an x."""

    def step(self, action: str) -> Reply:
        if action == "x":
            raise KeyError("no such door")
        return super().step(action)


class Endless(Corridor):
    """Gives a reward that no record can have."""

    def step(self, action: str) -> Reply:
        said, _, *rest = super().step(action)
        return (said, 9e8, *rest)  # type: ignore[return-value]


class Fickle(Corridor):
    """Judges by chance."""

    def step(self, action: str) -> Reply:
        said, _, done, *rest = super().step(action)
        return (said, float(random.random() < 0.5) * done, done, *rest)  # type: ignore[return-value]
