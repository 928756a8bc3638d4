"""TextWorld's cooking games with a demonstrator that leaves commands out, and a teacher.

read the recipe ─► take the ingredient ─► cook it ─► take a knife ─► cut it ─► prepare ─► eat

The games, replies and scores are TextWorld's own. The demonstrator follows TextWorld's solution,
but leaves out the commands of the rules that are withheld. The game then says that something is
missing, and not which command brings it. The teacher names the solution's next command at the first
step that brought the meal no nearer.

With narrow lessons nearly every failure is a meal that was not cooked. With broad lessons half of
the recipes need no cooking, and half of a worse demonstrator's mistakes spoil the ingredient.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from envs.adapters.action_tags import action_in
from envs.adapters.textworld import TextWorld
from envs.base import Skill, TaskSource
from envs.builtin.grid_world import PROMPTS
from envs.requirements import choice
from r3l.rollout.env_interface import ResetAnswer, StepAnswer
from r3l.rollout.reflection import FIELDS

SYSTEM = (
    "You cook in a text adventure. Answer with one command, like examine cookbook, take apple from "
    "counter, cook apple with stove, slice apple with knife, prepare meal, eat meal."
)
READ, WASTE = "examine cookbook", "inventory"
RULES = (("cook",), ("slice", "dice", "chop"))
"""The verbs of each rule, the first withheld one first."""


@dataclass
class Taken:
    """A step. `before`, `after`: the solution's commands before and after it, [] after a loss."""

    command: str
    before: list[str]
    after: list[str]
    lost: bool

    @property
    def nearer(self) -> bool:
        """Whether the step brought the end of the solution nearer."""
        return not self.lost and len(self.after) < len(self.before)


class Kitchen(TextWorld):
    """Games of textworld:cooking as envs.base.Demonstrating. One ingredient is to be cooked and
    cut. `rewards`: dense, a part of the score for each part of the meal, or sparse, 1 for a won
    game. `lessons`: of a warm-up, broad or narrow. The other options are those of
    textworld:cooking."""

    def __init__(
        self,
        *,
        rewards: str = "dense",
        lessons: str = "broad",
        max_steps: int = 8,
        max_response_tokens: int = 16,
        games: int = 200,
        **options: Any,
    ) -> None:
        choice("rewards", rewards, ("dense", "sparse"))
        choice("lessons", lessons, ("broad", "narrow"))
        self.sparse, self.broad = rewards == "sparse", lessons == "broad"
        own = {"cook": True, "cut": True, **options}
        super().__init__(
            "cooking",
            max_steps=max_steps,
            max_response_tokens=max_response_tokens,
            games=games,
            **own,
        )
        self.spec = replace(self.spec, system_prompt=SYSTEM, prompts=PROMPTS)
        self.seed, self.actions, self.taken = 0, list[str](), list[Taken]()

    @staticmethod
    def task_source(*, games: int = 200, **_: Any) -> TaskSource:  # type: ignore[override]
        """Lists `games` tasks for each split."""
        return TextWorld.task_source("cooking", games=games)

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        self.seed, self.actions, self.taken = seed, [], []
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> StepAnswer:
        before = self.plan()
        text, reward, terminated, truncated, info = super().step(action)
        self.actions.append(action)
        lost, won = bool(self.state.lost), bool(self.state.won)
        self.taken.append(Taken(action_in(action) or "", before, self.plan(), lost))
        return text, float(won) if self.sparse else reward, terminated, truncated, info

    def snapshot(self) -> bytes:
        return json.dumps([self.seed, self.actions]).encode()

    def restore(self, state: bytes) -> None:
        seed, actions = json.loads(state)
        self.reset(seed=seed)
        for action in actions:
            self.step(action)

    def plan(self) -> list[str]:
        """Returns the commands that win the game from here, or [] if it has ended. The first is to
        read the recipe."""
        left = list(self.state.policy_commands or [])
        return left if READ in self.commands or not left else [READ, *left]

    def demonstrate(self, skill: Skill, rng: random.Random, advice: str = "") -> str:
        """Returns a demonstrator's next command. It leaves out the commands of the first
        `skill.withheld` rules, unless `advice` has the next one."""
        plan, draw = self.plan(), rng.random()
        if plan and plan[0] in advice:
            return plan[0]
        if draw < skill.waste:
            return WASTE
        if draw > 1 - skill.mistakes:
            return self._mistake(rng)
        unknown = {verb for verbs in RULES[: skill.withheld] for verb in verbs}
        if skill.certainty and rng.random() < skill.certainty:
            unknown = set()
        known = [command for command in plan if command.split()[0] not in unknown]
        return known[0] if known else WASTE

    def reflection(self) -> dict[str, Any]:
        """Returns a teacher's reflection. The retry starts at the first step that brought the meal
        no nearer."""
        total, won = len(self.taken), bool(self.state.won)
        idle = [place for place, step in enumerate(self.taken) if not step.nearer]
        summary = f"{total} steps, {self.state.score or 0} of {self.state.max_score} points"
        if won and not idle:
            return dict(zip(FIELDS, (summary, None, "success", None, None), strict=True))
        pivot = idle[0] if idle else total - 1
        step = self.taken[pivot]
        fault = f"step {pivot} was {step.command[:40] or 'no command'}"
        outcome = "success_but_inefficient" if won else "failure"
        fields = (summary, fault, outcome, step.before[0] if step.before else READ, pivot)
        return dict(zip(FIELDS, fields, strict=True))

    def practice(self) -> list[dict[str, Any]]:
        """Returns the variants of lessons: recipes with cooking, and broad lessons without."""
        return [{}, {"cook": False}] if self.broad else [{}]

    def _mistake(self, rng: random.Random) -> str:
        possible = self._info()["admissible"]
        verbs = {verb for rule in RULES for verb in rule}
        spoiling = [command for command in possible if command.split()[0] in verbs]
        if self.broad and spoiling and rng.random() < 0.5:
            possible = spoiling
        return str(rng.choice(possible))

    def vocabulary(self) -> Iterator[str]:
        """Yields the prompts. A pretrained model needs no more."""
        yield from (SYSTEM, *PROMPTS.values())

    def _start(self, file: Any) -> Any:
        shown = (
            *("feedback", "won", "lost", "score", "max_score"),
            *("admissible_commands", "policy_commands"),
        )
        return self.library.start(str(file), self.library.EnvInfos(**dict.fromkeys(shown, True)))
