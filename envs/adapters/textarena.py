"""TextArena's one-player games by id, `textarena:Mastermind-v0` (MIT).
`pip install 'r3l[textarena]'`.

A step is one answer in the format that the game asks for; the game says what is wrong with it.
Games use Python's global random generator, so each attempt has its own state of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from envs import requirements
from r3l.errors import UserError
from r3l.rollout.interfaces import EnvSpec

T = TypeVar("T")


class TextArena:
    """The one-player game `env_id`. `make`: its constructor's arguments; `max_steps`: answer
    limit."""

    def __init__(
        self, env_id: str, *, max_steps: int = 50, make: dict[str, Any] | None = None
    ) -> None:
        name = f"textarena:{env_id}"
        library = requirements.package(name, "textarena", "textarena")
        self.stream = random.Random(0).getstate()
        try:
            # The raw game returns new messages only; its wrappers repeat the whole conversation.
            self.env = self._private(lambda: library.make(f"{env_id}-raw", **(make or {})))
        except ValueError as error:
            raise UserError(f"env {name}: {' '.join(str(error).split())[:200]}") from None
        try:
            self._start(0)
        except AssertionError as error:
            raise UserError(
                f"env {name}: not a one-player game ({error}); choose another"
            ) from None
        self.spec = EnvSpec(
            name=name,
            system_prompt="You play a game alone. Answer in the format that the game asks for.",
            max_steps=max_steps,
            sessions=64,
        )
        self.reason = ""

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self._start(seed)
        self.reason = ""
        return self._new(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Give one answer; the game's reward comes at its end."""
        done, _ = self._private(lambda: self.env.step(action))
        text = self._new()
        if not done:
            return text, 0.0, False, False, {}
        rewards, info = self._private(self.env.close)
        self.reason = str((info or {}).get(0, {}).get("reason", "") or "")
        return text, float((rewards or {}).get(0, 0.0)), True, False, {}

    def feedback(self) -> str:
        """Returns why the game ended, in the game's own words."""
        return self.reason

    def close(self) -> None:
        """Does nothing."""

    def _start(self, seed: int) -> None:
        self.stream = random.Random(seed).getstate()
        self._private(lambda: self.env.reset(num_players=1, seed=seed))

    def _new(self) -> str:
        """Returns the game's messages since the last call, except the player's own."""
        _, messages = self._private(self.env.get_observation)
        texts = [text for sender, text, *_ in messages if sender == -1]
        return "\n".join(texts).strip() or "Nothing is said."

    def _private(self, call: Callable[[], T]) -> T:
        """Call the game with this attempt's state of the random generator."""
        shared = random.getstate()
        random.setstate(self.stream)
        try:
            return call()
        finally:
            self.stream = random.getstate()
            random.setstate(shared)
