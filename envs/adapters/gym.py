"""Plays Gymnasium environments by id, such as `gym:FrozenLake-v1` (Farama, MIT). `pip install
'r3l[gym]'`.

Text spaces are passed through. A discrete action is its name or number. A discrete observation is
shown as the environment's rendered text, or else as its repr.
"""

from __future__ import annotations

import re
from typing import Any

from envs import requirements
from envs.adapters.action_tags import HOW_TO_ANSWER, NO_ACTION, action_in
from r3l.errors import UserError
from r3l.rollout.interfaces import EnvSpec

NAMES = {
    "FrozenLake": "left down right up",
    "CliffWalking": "up right down left",
    "Taxi": "south north east west pickup dropoff",
    "Blackjack": "stick hit",
}
"""Names of the numbered actions of Gymnasium's own text worlds."""
_COLOURED = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0m", re.DOTALL)


class Gymnasium:
    """The registered environment `env_id`, which may be `module:Id`; `make`: its constructor's
    arguments.

    `prompt`: the system prompt; `actions`: names of numbered actions, in order; `max_steps`: step
    limit (0: the registered limit); `success_threshold`: total reward of a full success.
    """

    def __init__(
        self,
        env_id: str,
        *,
        prompt: str = "",
        actions: list[str] | None = None,
        max_steps: int = 0,
        success_threshold: float = 1.0,
        make: dict[str, Any] | None = None,
    ) -> None:
        library = requirements.package(f"gym:{env_id}", "gymnasium", "gym")
        try:
            entry = library.spec(env_id)
        except library.error.Error as error:
            line = " ".join(str(error).split())
            raise UserError(f"env gym:{env_id}: not registered with Gymnasium ({line})") from None
        self.env = library.make(env_id, **_rendered(library, env_id, make or {}))
        spaces = library.spaces
        self.numbered = isinstance(self.env.action_space, spaces.Discrete)
        if not self.numbered and not isinstance(self.env.action_space, spaces.Text):
            raise UserError(
                f"env gym:{env_id}: action space {self.env.action_space} is not supported; it must "
                "be text or discrete"
            )
        self.reads_text = isinstance(self.env.observation_space, spaces.Text)
        self.actions = _names(env_id, self.env.action_space, actions) if self.numbered else {}
        self.spec = EnvSpec(
            name=f"gym:{env_id}",
            system_prompt=prompt or self._prompt(env_id),
            max_steps=max_steps or entry.max_episode_steps or 100,
            success_threshold=success_threshold,
            sessions=64,
        )

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        observation, _ = self.env.reset(seed=seed, options=options or None)
        return self._text(observation), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        chosen: Any = action
        if self.numbered:
            name = action_in(action)
            chosen = self.actions.get((name or "").lower())
            if chosen is None:
                known = ", ".join(word for word in self.actions if not word.isdigit())
                problem = f"There is no such action; say one of {known or ', '.join(self.actions)}."
                return (problem if name else NO_ACTION), 0.0, False, False, self._info()
        elif not self.env.action_space.contains(action):
            problem = f"That is not understood; an answer must be {self.env.action_space}."
            return problem, 0.0, False, False, self._info()
        observation, reward, terminated, truncated, _ = self.env.step(chosen)
        text = self._text(observation) or "Nothing is seen."
        return text, float(reward), bool(terminated), bool(truncated), self._info()

    def close(self) -> None:
        """Close the environment; a second call does nothing."""
        self.env.close()

    def _text(self, observation: Any) -> str:
        if self.reads_text:
            return observation  # type: ignore[no-any-return]
        drawn = self.env.render() if self.env.render_mode == "ansi" else None
        return _COLOURED.sub(r"[\1]", drawn).strip() if drawn else str(observation)

    def _info(self) -> dict[str, Any]:
        return {"admissible": list(self.actions)} if self.actions else {}

    def _prompt(self, env_id: str) -> str:
        if not self.numbered:
            return f"You act in {env_id}."
        names = [name for name in self.actions if not name.isdigit()] or list(self.actions)
        how = HOW_TO_ANSWER.format(example=names[0])
        return f"You act in {env_id}. Actions: {', '.join(names)}. {how}"


def _rendered(library: Any, env_id: str, make: dict[str, Any]) -> dict[str, Any]:
    """Returns the constructor arguments, with text rendering if the environment offers it."""
    probe = library.make(env_id, **make)
    offers = "ansi" in (probe.metadata.get("render_modes") or ())
    probe.close()
    return {"render_mode": "ansi", **make} if offers else make


def _names(env_id: str, space: Any, given: list[str] | None) -> dict[str, int]:
    """Maps the name (if it has one) and the number of each action, as text, to the action."""
    name = env_id.rpartition(":")[2].rpartition("/")[2].rpartition("-v")[0]
    names = given or NAMES.get(re.sub(r"\d+x\d+$", "", name), "").split()
    if names and len(names) != space.n:
        raise UserError(
            f"env option actions: has {len(names)} names, but there are {space.n} actions"
        )
    numbers = [str(space.start + k) for k in range(space.n)]
    words = [(n.lower(), k) for k, n in enumerate(names)] + [(n, k) for k, n in enumerate(numbers)]
    return {word: int(space.start) + k for word, k in words}
