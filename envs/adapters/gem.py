"""Plays GEM environments by id, such as `gem:game:GuessTheNumber-v0-easy` (Apache-2.0). `pip
install 'r3l[gem]'`.

A step is one answer, in the format the environment asks for. Question sets come from Hugging Face
and need the network; games do not.
"""

from __future__ import annotations

from typing import Any

from envs import requirements
from r3l.errors import UserError
from r3l.rollout.interfaces import EnvSpec


class Gem:
    """The environment `env_id`. `make`: its constructor's arguments; `max_steps`: answer limit."""

    def __init__(
        self, env_id: str, *, max_steps: int = 50, make: dict[str, Any] | None = None
    ) -> None:
        library = requirements.package(f"gem:{env_id}", "gem", "gem")
        try:
            self.env = library.make(env_id, **(make or {}))
        except (ValueError, KeyError) as error:
            raise UserError(f"env gem:{env_id}: {' '.join(str(error).split())[:200]}") from None
        self.spec = EnvSpec(
            name=f"gem:{env_id}",
            system_prompt="Answer in the format that the task asks for.",
            max_steps=max_steps,
            sessions=64,
        )

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        observation, _ = self.env.reset(seed=seed)
        return str(observation), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        text = str(observation).strip() or "Nothing is said."
        return text, float(reward), bool(terminated), bool(truncated), {}

    def close(self) -> None:
        if (close := getattr(self.env, "close", None)) is not None:
            close()
