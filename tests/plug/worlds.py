"""A policy that follows a script, and runs of explorations that are killed at every moment."""

import asyncio
import json
import zlib

from r3l.errors import EngineDead
from r3l.records import Group, ReflectionRecord, SlotResult, Task
from r3l.rollout.exploration import Decoding, Exploration
from r3l.rollout.group import explore_group
from r3l.training.group_memory import Memory
from tests.r3l.fakes import Corridor, ScriptedPolicy

TASK = Task("corridor/1", "corridor", 1)
REFLECTION = {
    "trajectory_summary": "went wrong",
    "root_cause_analysis": "door 1",
    "trajectory_outcome": "failure",
    "improvement_suggestion": "say abc",
    "retry_from_step": 1,
}


class Killed(EngineDead):
    """The actor was killed."""


def reply(prompt: str) -> str:
    """Fails at door 1 in plain attempts, succeeds with advice; reflects when it is asked to."""
    if "coach" in prompt.splitlines()[1]:
        return "say abc"
    asked = "trajectory_outcome" in prompt or "retry_from_step" in prompt
    if asked and "say abc" not in prompt:
        return json.dumps(REFLECTION)
    door = prompt.count("<|im_start|>assistant") - 1
    advised = "say abc" in prompt
    return "abc"[door % 3] if advised or door != 1 else "x"


class Player(ScriptedPolicy):
    """Follows a script. If `lucky`, every second plain attempt finds the right answer by chance."""

    def __init__(self, script=reply, *, lucky=False):
        super().__init__(self.answer)
        self.script, self.lucky = script, lucky

    def answer(self, prompt):
        said = self.script(prompt)
        return "b" if said == "x" and self.lucky and (self.asked[-1].seed >> 11) % 2 else said


def policy() -> ScriptedPolicy:
    return Player()


class Actor:
    """Explores one group, and is killed when it has stored `lives` things."""

    def __init__(
        self, algorithm, plan, player, *, handed=(), results=(), reflections=(), lives=None
    ):
        self.left = lives
        self.stored: list[SlotResult | ReflectionRecord] = [*results, *reflections]
        self.algorithm = algorithm
        self.x = Exploration(
            TASK,
            player,
            Corridor,
            plan,
            Decoding(),
            seed=7,
            handed=handed,
            results={r.slot: r for r in results},
            reflections={r.name: r for r in reflections},
            emit=self.emit,
        )

    async def emit(self, made):
        if self.left == 0:
            raise Killed("the actor was killed")
        if self.left is not None:
            self.left -= 1
        self.stored.append(made)
        return made

    def run(self):
        return asyncio.run(explore_group(self.algorithm.explore, self.x))


def explored(algorithm, memory: Memory | None = None, player=None) -> Group:
    """A group that `algorithm` explores without a kill."""
    memory = memory if memory is not None else Memory()
    plan = algorithm.plan(memory.facts(TASK.task_id))
    group_id = f"g{len(memory.groups[TASK.task_id])}"
    handed = memory.handed(plan, group_id)
    actor = Actor(algorithm, plan, player or Player(), handed=handed)
    results = actor.run()
    group = Group(
        group_id, TASK, plan, "complete", tuple(results), tuple(actor.x.reflections.values())
    )
    memory.keep(group)
    return group


def explored_under_kills(algorithm, memory: Memory, plan, player) -> Group:
    """The same group, if the actor is killed after each thing that it stores."""
    results, reflections = [], []
    for _ in range(200):
        actor = Actor(
            algorithm,
            plan,
            player,
            handed=memory.handed(plan, "g"),
            results=results,
            reflections=reflections,
            lives=1,
        )
        try:
            done = actor.run()
        except Killed:
            results = [s for s in actor.stored if isinstance(s, SlotResult)]
            reflections = [s for s in actor.stored if isinstance(s, ReflectionRecord)]
            continue
        return Group("g", TASK, plan, "complete", tuple(done), tuple(actor.x.reflections.values()))
    raise AssertionError("the group is never complete")


def digest(group: Group) -> list:
    """What a group is, whoever explored it."""
    return [
        (r.slot, r.status, r.cause, r.of, None if t is None else (t.pivot, zlib.crc32(t.token_ids)))
        for r in sorted(group.results, key=lambda r: r.slot)
        for t in (r.trajectory,)
    ]
