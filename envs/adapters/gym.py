"""Gymnasium's environments by id, such as `gym:FrozenLake-v1` (Towers et al. 2024,
arXiv:2407.17032; Farama, MIT). Needs `pip install 'r3l[gym]'`.

Actions are texts or numbers; in place of a number, a response may give the action's name.
Observations are texts, or numbers from a finite set. For numbers, the policy reads what the
environment renders as text, or else their names and values. Environments with pictures or
measurements are refused.
"""

import re
from collections import deque
from typing import Any, get_args

from envs import requirements
from envs.adapters.action_tags import HOW_TO_ANSWER, NO_ACTION, action_in
from envs.adapters.gym_worlds import WORLDS, Pays
from r3l.errors import UserError
from r3l.rollout.env_interface import EnvSpec, ResetAnswer, StepAnswer

LIMIT = 100
"""Step limit of environments that are registered without one."""
_VARIANT = re.compile(r"(\d+x\d+|Slippery)?-v\d+$")
_HIGHLIGHTED = re.compile(r"\x1b\[4\dm([^\x1b]*)\x1b\[0m")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Gymnasium:
    """The registered environment `env_id`, which may be `module:Id`.

    `make`: arguments of its constructor; `prompt`: what the system prompt says about the task;
    `actions`: names of numbered actions, in order; `pays`: own (the environment's rewards) or
    finish (1 for finishing, else 0; default: see gym_worlds.WORLDS); `max_steps`: step limit (0:
    the registered one); `success_threshold`: total reward of a full success; `max_response_tokens`:
    token limit.
    """

    replans = True

    def __init__(
        self,
        env_id: str,
        *,
        make: dict[str, Any] | None = None,
        prompt: str = "",
        actions: list[str] | None = None,
        pays: Pays | None = None,
        max_steps: int = 0,
        success_threshold: float = 1.0,
        max_response_tokens: int = 256,
    ) -> None:
        library = requirements.package(f"gym:{env_id}", "gymnasium", "gym")
        self.world = WORLDS.get(_VARIANT.sub("", env_id))
        pays = pays or (self.world.pays if self.world else "own")
        requirements.choice("pays", pays, get_args(Pays))
        self.finish = pays == "finish"
        requirements.integer("max_steps", max_steps, 0, 100_000)
        self.env, limit = _made(library, env_id, make or {}, max_steps)
        self.numbered = isinstance(self.env.action_space, library.spaces.Discrete)
        _check_spaces(library, env_id, self.env)
        names = actions or (self.world.actions.split() if self.world else [])
        self.actions = _numbered(names, self.env.action_space) if self.numbered else {}
        self.names = [name for name in self.actions if not name.isdigit()] or list(self.actions)
        self.spec = EnvSpec(
            name=f"gym:{env_id}",
            system_prompt=self._prompt(
                prompt or (self.world.task if self.world else f"You act in {env_id}.")
            ),
            max_steps=limit,
            max_response_tokens=max_response_tokens,
            success_threshold=success_threshold,
            sessions=64,
        )
        self.total = 0.0

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        observation, _ = self.env.reset(seed=seed, options=options or None)
        self.total = 0.0
        return self._text(observation), self._info()

    def step(self, action: str) -> StepAnswer:
        chosen: Any = action
        if self.numbered:
            name = action_in(action)
            chosen = self.actions.get((name or "").lower())
            if chosen is None:
                problem = f"There is no such action; say one of {', '.join(self.names)}."
                return (problem if name else NO_ACTION), 0.0, False, False, self._info()
        elif not self.env.action_space.contains(action):
            problem = f"That is not understood; an answer must be {self.env.action_space}."
            return problem, 0.0, False, False, self._info()
        observation, reward, terminated, truncated, _ = self.env.step(chosen)
        paid = float(terminated) if self.finish else float(reward)
        self.total += paid
        text = self._text(observation) or "Nothing is seen."
        return text, paid, bool(terminated), bool(truncated), self._info()

    def feedback(self) -> str:
        return f"The total reward is {self.total:g}."

    def demonstration(self) -> list[str]:
        """Returns the fewest actions that succeed. Needs an environment with Gymnasium's table `P`
        of transitions, none of them random; for others returns []."""
        table = getattr(self.env.unwrapped, "P", None)
        first = getattr(self.env.unwrapped, "s", None)
        if not isinstance(table, dict) or first is None:
            return []
        ways: dict[int, tuple[list[str], float]] = {int(first): ([], self.total)}
        queue = deque(ways)
        while queue:
            state = queue.popleft()
            way, total = ways[state]
            for name in self.names:
                outcomes = table[state][self.actions[name]]
                if len(outcomes) != 1:
                    return []
                _, to, reward, terminated = outcomes[0]
                if not terminated and int(to) not in ways:
                    ways[int(to)] = ([*way, name], total + float(reward))
                    queue.append(int(to))
                elif terminated and (self.finish or total + reward >= self.spec.success_threshold):
                    return [*way, name]
        return []

    def close(self) -> None:
        self.env.close()

    def _text(self, observation: Any) -> str:
        if isinstance(observation, str):
            return observation
        if self.world:
            return self.world.text(self.env.unwrapped, observation)
        if self.env.render_mode == "ansi":
            return _COLOUR.sub("", _HIGHLIGHTED.sub(r"[\1]", str(self.env.render()))).strip()
        values = observation if isinstance(observation, tuple) else (observation,)
        return ", ".join(map(str, values))

    def _info(self) -> dict[str, Any]:
        return {"admissible": list(self.actions)} if self.actions else {}

    def _prompt(self, task: str) -> str:
        if not self.numbered:
            return task
        how = HOW_TO_ANSWER.format(example=self.names[0])
        return f"{task} Actions: {', '.join(self.names)}. {how}"


def _made(library: Any, env_id: str, make: dict[str, Any], max_steps: int) -> tuple[Any, int]:
    """Makes an environment that renders text if it can. Returns it with its step limit. Raises
    UserError if Gymnasium does not know the id or cannot make it."""
    name = f"env gym:{env_id}"
    try:
        entry = library.spec(env_id)
        limit = max_steps or entry.max_episode_steps or LIMIT
        given = {"max_episode_steps": limit, "disable_env_checker": True, **make}
        env = library.make(env_id, **given)
        if "ansi" in (env.metadata.get("render_modes") or ()) and "render_mode" not in make:
            env.close()
            env = library.make(env_id, **given, render_mode="ansi")
    except (library.error.UnregisteredEnv, library.error.DeprecatedEnv, ValueError) as error:
        raise UserError(
            f"{name}: {_line(error)}; give the id of a registered environment, such as "
            "gym:FrozenLake-v1, or gym:module:Id if a module of yours registers it"
        ) from None
    except (library.error.Error, ImportError, TypeError) as error:
        raise UserError(
            f"{name}: cannot be made ({_line(error)}); install what it needs, or change the "
            "option make"
        ) from None
    return env, limit


def _check_spaces(library: Any, env_id: str, env: Any) -> None:
    """Raises UserError unless actions are texts or numbered, and observations are texts or numbers
    of finite sets."""
    spaces, rule = library.spaces, "only texts and Discrete numbers can be {}"
    finite = (spaces.Text, spaces.Discrete)
    seen = env.observation_space
    parts = seen.spaces if isinstance(seen, spaces.Tuple) else (seen,)
    where, space, done = "", None, ""
    if not isinstance(env.action_space, finite):
        where, space, done = "actions", env.action_space, "said"
    elif not all(isinstance(part, finite) for part in parts):
        where, space, done = "observations", seen, "read"
    if where:
        raise UserError(
            f"env gym:{env_id}: its {where} are {_line(space)}; {rule.format(done)}; choose "
            "another environment, or write a class with a text for each observation "
            "(docs/environments/your-own.md)"
        )


def _numbered(names: list[str], space: Any) -> dict[str, int]:
    """Maps the name (if it has one) and the number of each action, as text, to the action."""
    count, start = int(space.n), int(space.start)
    if names and len(names) != count:
        raise UserError(
            f"env option actions: has {len(names)} names, but there are {count} actions"
        )
    words = {name.lower(): start + place for place, name in enumerate(names)}
    return words | {str(start + place): start + place for place in range(count)}


def _line(what: object) -> str:
    return " ".join(str(what).split())[:200].rstrip(".")
