"""ScienceWorld with a demonstrator that finds its way back from detours, and a teacher.

r3l-learner warmup --env lab/scienceworld/guided.py:GuidedScienceWorld …
"""

import random
from collections.abc import Iterator
from typing import Any

from envs.adapters.action_tags import NO_ACTION
from envs.adapters.scienceworld.brief_text import NOT_UNDERSTOOD
from envs.adapters.scienceworld.science_tasks import SPLITS
from envs.adapters.scienceworld.scienceworld import ScienceWorld
from envs.adapters.scienceworld.simulator import START, History
from envs.base import Skill
from lab.scienceworld import demonstrator
from lab.scienceworld.gold_guide import Guide

REPLIES = (
    NOT_UNDERSTOOD,
    "You move to the kitchen. You teleport to the kitchen.",
    "You move the apple to the inventory. The sink is not moveable.",
    "You focus on the apple.",
    "You decide to wait for 1 iterations.",
    "The door is already open. The door is not open. The door is now open.",
    "In your inventory, you see:",
    "in kitchen you see: doors: closed celsius",
    "The score is 0 of 100.",
    "That is not allowed. The task has ended. Nothing is said.",
    "steps, score, step was no action",
    "Ambiguous request: Please enter the number for the action you intended (or blank to cancel):",
    "Unknown action.  Type 'help' for a list of actions, and 'objects' for a list of possible "
    "object referents.",
)
"""Frequent replies of upstream and of this package."""


class GuidedScienceWorld(ScienceWorld):
    """ScienceWorld as envs.base.Demonstrating. Its options are those of ScienceWorld."""

    def demonstrate(self, skill: Skill, rng: random.Random, advice: str = "") -> str:
        """Returns a demonstrator's next action: the guide's, or a wrong or useless action. In the
        first `skill.withheld` tasks the demonstrator focuses on any thing in the room."""
        played = self.simulator.turns(self.history)
        guessing = self.history[0] in self.names[: skill.withheld]
        return demonstrator.act(self.guide(), played, skill, rng, advice, guessing=guessing)

    def reflection(self) -> dict[str, Any]:
        """Returns a teacher's reflection on the finished attempt (demonstrator.reflect)."""
        histories = [self.history[:end] for end in (START, *self.ends)]
        return demonstrator.reflect(self.simulator, self.guide(), histories)

    def vocabulary(self) -> Iterator[str]:
        """Yields the prompts, the descriptions and the names of all things in 40 variations of each
        task."""
        yield from (self.spec.system_prompt, *self.spec.prompts.values(), *demonstrator.WASTE)
        yield from (*REPLIES, NO_ACTION, "open go to door pick up move focus on")
        for name in self.names:
            count = sum(SPLITS[name])
            for variation in range(0, count, max(1, count // 40)):
                start = (name, str(variation), self.simplification)
                yield self._shown(self.simulator.turn(start).text)
                yield self._things(start)

    def guide(self) -> Guide:
        """Returns the guide through this variation: a literal one if the usual guide does not
        succeed."""
        start = self.history[:START]
        if start not in _guides:
            first = self.simulator.turn(start).text
            gold = self.simulator.turns((*start, *self.simulator.gold(start)))
            guide = Guide(first, gold)
            if not demonstrator.reaches_full_score(self.simulator, guide, start):
                guide = Guide(first, gold, literal=True)
            _guides[start] = guide
        return _guides[start]

    def _things(self, start: History) -> str:
        """The names of everything in a task's world, as JSON."""
        if self.simulator.live != start:
            self.simulator.load(start)
        return str(self.simulator.call(lambda s: s.getAllObjectIdsTypesReferentsLUTJSON()))


_guides: dict[History, Guide] = {}
"""The guides of this process, by the start of a history."""
