"""The interfaces of environments. In some environments, an agent plays the attempts."""

import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from r3l.errors import UserError
from r3l.records import Origin, Task, Trajectory
from r3l.rollout.policy_interface import SampleParams
from r3l.text import plain_value

ResetAnswer = tuple[str, dict[str, Any]]
"""(observation, info)."""
StepAnswer = tuple[str, float, bool, bool, dict[str, Any]]
"""(observation, reward, terminated, truncated, info)."""


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _all_text(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


COUNT = "a whole number, 1 or more"
KINDS = ("exact", "canonical", "no")
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda value: isinstance(value, str) and bool(value), "text that is not empty"),
    "system_prompt": (lambda value: isinstance(value, str), "text"),
    "max_steps": (_counts, COUNT),
    "max_response_tokens": (_counts, COUNT),
    "success_threshold": (
        lambda value: isinstance(value, int | float) and not isinstance(value, bool),
        "a number",
    ),
    "deterministic": (lambda value: value in KINDS, f"one of {', '.join(KINDS)}"),
    "sessions": (lambda value: value is None or _counts(value), f"None, or {COUNT}"),
    "stop": (
        lambda value: isinstance(value, list | tuple) and _all_text(value) and all(value),
        "a list of texts, none of them empty",
    ),
    "prompts": (
        lambda value: isinstance(value, dict) and _all_text([*value, *value.values()]),
        "texts by name",
    ),
}
"""What each field of an EnvSpec must be."""


def canonical(text: str) -> str:
    """Returns the words of an observation, sorted: what repeats if `deterministic` is
    "canonical"."""
    return " ".join(sorted(text.split()))


@dataclass(frozen=True)
class EnvSpec:
    """An environment's description of itself. Raises UserError for a value of the wrong type, or
    outside its limits.

    `success_threshold`: the least reward of a full success, positive and finite. Recorded rewards
    are divided by it.
    `deterministic`: what repeats with the same seed and actions: "exact" (every byte), "canonical"
    (the words, in any order) or "no" (nothing).
    `sessions`: how many instances one process may hold at once (None: no limit). Set 1 if the
    instances share state.
    """

    name: str
    system_prompt: str
    max_steps: int
    max_response_tokens: int = 512
    success_threshold: float = 1.0
    deterministic: Literal["exact", "canonical", "no"] = "exact"
    sessions: int | None = None
    stop: list[str] = field(default_factory=list)
    """Texts that end a response, such as an empty line if a step is a paragraph."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Prompts that replace those in r3l/rollout/prompts, keyed by file name without .md."""

    def __post_init__(self) -> None:
        try:
            for name, value in list(vars(self).items()):
                object.__setattr__(self, name, plain_value(value, name))
        except ValueError as error:
            raise UserError(f"env {self.name}: its spec: {error}") from None
        for name, (holds, rule) in RULES.items():
            if not holds(value := getattr(self, name)):
                raise UserError(
                    f"env {self.name}: its spec: {name} is {value!r:.80}; it must be {rule}"
                )
        if not 0 < self.success_threshold < math.inf:
            raise UserError(
                f"env {self.name}: success_threshold is {self.success_threshold}; it must be "
                "positive and finite, because rewards are divided by it; if the threshold is 0 or "
                "less, add a constant to the threshold and to every attempt's reward"
            )


@runtime_checkable
class Environment(Protocol):
    """A text environment with Gymnasium's interface, for one attempt at a time. An attempt's reward
    is the sum of its step rewards. A retry's reward includes the steps before the pivot.

    Optional methods: `snapshot() -> bytes` and `restore(bytes)`; `feedback() -> str`, a closing
    remark; `right_answers() -> list[str]`, the responses that succeed (r3l.run.answer_probability).
    Each method may return an awaitable (an environment in another process does).
    """

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer: ...

    def step(self, action: str) -> StepAnswer:
        """Takes the policy's whole response. Must not raise for an invalid action: the observation
        says what is wrong. `info["fault"]` names a fault of the environment itself."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Retry:
    """A retry of a recorded attempt from its step `pivot`. `guidance`: the text that the policy
    reads from that step on. `of`: the slot of the retried attempt, -1 if it is of another group.
    `reflection`: the name of the reflection that advises it."""

    base: Trajectory
    pivot: int
    guidance: str = ""
    of: int = -1
    origin: Origin | None = None
    reflection: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the retry's Trajectory that say what it retries."""
        return {
            "of": self.of,
            "pivot": self.pivot,
            "origin": self.origin,
            "reflection": self.reflection,
        }


Offer = Callable[[Callable[[], Trajectory], float], Awaitable[bool]]
"""Saves progress if sampling since the last save took long enough. Returns whether it saved."""


@runtime_checkable
class PlayedByAgent(Protocol):
    """Lets an agent play the attempts. The agent itself calls the policy."""

    @property
    def spec(self) -> EnvSpec: ...

    def close(self) -> Awaitable[None] | None: ...

    async def play_with_agent(
        self,
        task: Task,
        slot: int,
        params: Callable[[int], SampleParams],  # keyed by call
        retry: Retry | None = None,
        left: Trajectory | None = None,
        offer: Offer | None = None,
        retried: bool = False,
    ) -> Trajectory:
        """Plays `retry` if given, else a new attempt. `left`: progress that an earlier actor left.
        `retried`: whether a retry of this attempt may follow. Raises EpisodeError or EngineDead."""


Playable = Environment | PlayedByAgent
"""The environment or the agent in which attempts are played."""
