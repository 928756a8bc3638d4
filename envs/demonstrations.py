"""Demonstrations for a warm-up, made from one method of an environment.

    class Door:
        def demonstration(self) -> list[str]:      # actions that succeed from where reset left off
            return [self.word]

`Demonstrated` makes a demonstrator and a teacher from that method (envs.base.Demonstrating). The
method's actions are the plan. The demonstrator plays the plan, with some mistakes. The teacher's
reflection names the first step that differs from the plan. If the environment's class declares
`replans = True`, the method is called again after each mistake; otherwise the plan goes on where it
was.
"""

import json
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envs import registry
from envs.base import Demonstrating, Skill, Split
from r3l.errors import UserError
from r3l.records import Task
from r3l.rollout.env_interface import ResetAnswer, StepAnswer
from r3l.rollout.reflection import FIELDS

READ_TASKS = 64
"""The vocabulary of a tiny policy is made from the texts of this many tasks."""
KNOWN_ACTIONS = 64
"""The last actions of demonstrations that are remembered. Mistakes are drawn from them."""
LONGEST_QUOTE = 60
"""A reflection quotes at most this many characters of an action."""


def demonstrating(name: str, **options: Any) -> Demonstrating:
    """Makes an environment with a demonstrator, wrapped in `Demonstrated` if needed. Raises
    UserError if the environment has no demonstrations."""
    env = registry.make(name, **options)
    if isinstance(env, Demonstrating):
        return env
    if hasattr(env, "demonstration"):
        return Demonstrated(env, warmup_tasks(name, options, READ_TASKS))
    raise UserError(
        f"env {name!r}: has no demonstrations; add a method demonstration() that returns a "
        "list of actions to solve the current task (docs/environments/your-own.md)"
    )


def warmup_tasks(
    name: str, options: Mapping[str, Any], count: int, seed: int = 0, start: int = 0
) -> list[Task]:
    """Returns up to `count` warm-up tasks from number `start` on. If the environment has no warm-up
    tasks, takes training tasks."""
    source = registry.task_source(name, **options)
    split: Split = "warmup" if source.tasks("warmup", 1, seed) else "train"
    return source.tasks(split, count, seed, start)


class Demonstrated:
    """An environment with a demonstrator built from its method `demonstration`.

    A reset without options starts one of `tasks`. `restore` plays the attempt's actions again, so
    the environment must be deterministic.
    """

    def __init__(self, env: Any, tasks: Sequence[Task]) -> None:
        self.env, self.spec, self.some_tasks = env, env.spec, tasks
        self.known: deque[str] = deque(maxlen=KNOWN_ACTIONS)
        self.begin: tuple[int, dict[str, Any]] = (0, {})
        self.plan: list[str] = []
        self.rest: list[str] = []  # of the plan
        self.rights: list[str] = []  # the plan's action at each step
        self.actions: list[str] = []
        self.reward = 0.0

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        """Starts a task. The demonstration is the plan. Raises UserError if the plan is empty."""
        if options is None and self.some_tasks:
            task = self.some_tasks[seed % len(self.some_tasks)]
            seed, options = task.seed, dict(task.options)
        self.begin, self.actions, self.reward = (seed, options or {}), [], 0.0
        self.env.reset(seed=seed, options=options)
        self.plan = [str(action) for action in self.env.demonstration()]
        if not self.plan:
            raise UserError(f"env {self.spec.name}: the demonstration of seed {seed} is empty")
        self.known.extend(self.plan)
        self.rest, self.rights = [action.strip() for action in self.plan], []
        # demonstration() may have stepped the environment.
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, info

    def step(self, action: str) -> StepAnswer:
        observation, reward, terminated, truncated, info = self.env.step(action)
        right = self.rest[0]
        self.actions.append(action)
        self.rights.append(right)
        self.reward += reward
        if action.strip() == right:
            self.rest = self.rest[1:] or self.rest
        elif getattr(self.env, "replans", False) and not (terminated or truncated):
            self.rest = [str(each).strip() for each in self.env.demonstration()] or self.rest
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        self.env.close()

    def snapshot(self) -> bytes:
        return json.dumps([self.begin, self.actions]).encode()

    def restore(self, state: bytes) -> None:
        (seed, options), actions = json.loads(state)
        self.reset(seed=seed, options=options)
        for action in actions:
            self.step(action)

    def feedback(self) -> str:
        """Returns the environment's own closing remark, or "" if it has none."""
        speak = getattr(self.env, "feedback", None)
        return str(speak()) if speak is not None else ""

    def demonstrate(self, skill: Skill, rng: random.Random, advice: str = "") -> str:
        """Returns the plan's next action. With probability `skill.mistakes + skill.waste`, returns
        another action, unless `advice` contains the plan's action."""
        right = self.rest[0]
        if right in advice or rng.random() >= skill.mistakes + skill.waste:
            return right
        others = [action for action in self.known if action != right]
        return rng.choice(others) if others else "?"

    def reflection(self) -> dict[str, Any]:
        """Returns a teacher's reflection. After a mistake, advises the plan's action for the
        first wrong step."""
        succeeded = self.reward >= self.spec.success_threshold - 1e-9
        taken = enumerate(zip(self.actions, self.rights, strict=True))
        wrong = [k for k, (action, right) in taken if action.strip() != right]
        pivot = wrong[0] if wrong else len(self.actions) - 1
        summary = f"{len(self.actions)} steps, reward {self.reward:g}"
        if succeeded and (not wrong or len(self.actions) <= len(self.plan)):
            fields: tuple[Any, ...] = (summary, None, "success", None, None)
        else:
            fault = f"step {pivot} was {self.actions[pivot][:LONGEST_QUOTE]}"
            outcome = "success_but_inefficient" if succeeded else "failure"
            fields = (summary, fault, outcome, self.rights[pivot], pivot)
        return dict(zip(FIELDS, fields, strict=True))

    def vocabulary(self) -> Iterator[str]:
        """Yields the prompts and, for some tasks, the texts of a demonstration."""
        yield from (self.spec.system_prompt, *self.spec.prompts.values(), "steps reward was")
        for number in range(len(self.some_tasks)):
            yield self.reset(seed=number)[0]
            for action in list(self.plan):
                observation, _, terminated, truncated, _ = self.step(action)
                yield from (action, observation)
                if terminated or truncated:
                    break
