"""ScienceWorld: elementary science experiments in text (AI2, Apache-2.0).
`pip install 'r3l[scienceworld]'`, and Java.

A step is one action. Reward is the change of the score, from 0 to 1; a wrong `focus on` ends
the attempt with nothing. All environments of a process share one Java machine (envs.adapters.jvm).
"""

from __future__ import annotations

from typing import Any

from envs import requirements
from envs.adapters import jvm
from envs.adapters.action_tags import HOW_TO_ANSWER, NO_ACTION, action_in
from envs.adapters.scienceworld_tasks import LIMITS, SPLITS
from envs.base import ListedTasks, TaskSource
from r3l.errors import UserError
from r3l.records import Task
from r3l.rollout.interfaces import EnvSpec

SYSTEM = (
    "You carry out a science experiment in a simulated house. Actions: open/close OBJ, "
    "activate/deactivate OBJ, connect OBJ to OBJ, disconnect OBJ, use OBJ on OBJ, look around, "
    "look at OBJ, look in OBJ, read OBJ, move OBJ to OBJ, pick up OBJ, put down OBJ, pour OBJ in "
    "OBJ, dunk OBJ in OBJ, mix OBJ, go to LOC, teleport to LOC, eat OBJ, flush OBJ, focus on OBJ, "
    "wait, wait1, task, inventory. Focus only on what the task names: a wrong focus ends the "
    "attempt. If you are asked which thing you mean, answer with its number. "
    + HOW_TO_ANSWER.format(example="open door to kitchen")
)
REFUSED = ("reset task",)
"""Actions that would restart the task and keep its score."""


class ScienceWorld:
    """ScienceWorld: 30 tasks, each in many variations.

    `tasks`: the names of those to play; `simplification`: upstream's, comma separated;
    `eval_split`: test or dev; `max_steps`: step limit of every task, 0 for 1.5 times its longest
    gold path and at least 30; `heap_mib`: memory of the Java machine; `timeout_s`: longest call to
    it, less than env.step_s, so that a hung machine and a hung worker have different causes.
    """

    def __init__(
        self,
        *,
        tasks: list[str] | None = None,
        simplification: str = "easy",
        eval_split: str = "test",
        max_steps: int = 0,
        heap_mib: int = 512,
        timeout_s: float = 50.0,
    ) -> None:
        library = requirements.package("scienceworld", "scienceworld.constants", "scienceworld")
        requirements.program("scienceworld", "java", jvm.INSTALL_JAVA)
        self.jar = str(library.JAR_PATH)
        self.listed = _tasks(tasks, eval_split)
        self.simplification, self.limit = simplification, max_steps
        self.heap_mib, self.timeout_s = heap_mib, timeout_s
        self.spec = EnvSpec(
            name="scienceworld",
            system_prompt=SYSTEM,
            max_steps=max_steps or max(LIMITS.values()),
            max_response_tokens=512,
            thread_safe=False,
            sessions=8,
            feedback="weak",
            data_license="Apache-2.0",
        )
        self.jvm: jvm.Jvm | None = None
        self.server: Any = None
        self.loaded: tuple[str, int, bool] | None = None
        self.score, self.steps = 0.0, 0

    @staticmethod
    def task_source(
        tasks: list[str] | None = None, eval_split: str = "test", **_: Any
    ) -> TaskSource:
        """Upstream's variations: train for training, test (or dev) for evaluation."""
        return _tasks(tasks, eval_split)

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Load `options["task"]` in `options["variation"]`; without options, those of `seed`."""
        chosen = options or self.listed.tasks("train", 1, seed)[0].options
        self._load(str(chosen["task"]), int(chosen["variation"]))
        self.score, self.steps = 0.0, 0
        task, room = self._call(
            lambda server: (server.freeActionTaskDesc(), server.freeActionLook())
        )
        return f"{_plain(task)}\n{_plain(room)}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Act; see `r3l.rollout.interfaces.Environment.step`."""
        self.steps += 1
        command = action_in(action)
        if command is None or command.lower() in REFUSED:
            text, score, done = (command and "That is not allowed.") or NO_ACTION, self.score, False
        else:
            text, raw, done = self._call(
                lambda server: (server.step(command), server.getScore(), server.getCompleted())
            )
            score, done = min(max(float(raw), 0.0), 1.0), bool(done) or raw < 0
        reward, self.score = score - self.score, score
        return _plain(text), reward, done, not done and self.steps >= self._limit(), {}

    def feedback(self) -> str:
        """The score reached."""
        return f"The score is {round(100 * self.score)} of 100."

    def demonstration(self) -> list[str]:
        """Upstream's gold path, up to 178 actions; computing it takes up to half a minute."""
        assert self.loaded is not None, "reset first"
        task, variation, _ = self.loaded
        self._load(task, variation, gold=True)
        return list(self._call(lambda server: list(server.getGoldActionSequence())))

    def close(self) -> None:
        """Release the Java machine; the last environment of the process ends it."""
        self.server, self.loaded = None, None
        if self.jvm is not None:
            machine, self.jvm = self.jvm, None
            jvm.release(machine)

    def _load(self, task: str, variation: int, *, gold: bool = False) -> None:
        """Load a task from its beginning; a machine that died is replaced."""
        if self.jvm is None or self.jvm.lost:
            self.close()
            self.jvm = jvm.acquire("scienceworld", [self.jar], self.heap_mib, self.timeout_s)
            gateway = self.jvm.gateway
            self.server = self.jvm.call(
                lambda: gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
            )
        simplification = self.simplification
        self._call(lambda server: server.load(task, variation, simplification, gold))
        self.loaded = (task, variation, gold)

    def _call(self, call: Any) -> Any:
        assert self.jvm is not None, "reset first"
        return self.jvm.call(lambda: call(self.server))

    def _limit(self) -> int:
        assert self.loaded is not None
        return self.limit or LIMITS[self.loaded[0]]


def _tasks(names: list[str] | None, eval_split: str) -> ListedTasks:
    for name in names or ():
        if name not in SPLITS:
            raise UserError(f"env option tasks: {name!r} is unknown; there are {', '.join(SPLITS)}")
    if eval_split not in ("dev", "test"):
        raise UserError(f"env option eval_split is {eval_split!r}; it must be dev or test")
    train, held = [], []
    for name in names or SPLITS:
        sizes = SPLITS[name]
        first = sizes.train + (sizes.dev if eval_split == "test" else 0)
        count = sizes.test if eval_split == "test" else sizes.dev
        train += [_task(name, variation) for variation in range(sizes.train)]
        held += [_task(name, variation) for variation in range(first, first + count)]
    return ListedTasks({"train": train, "eval": held})


def _task(name: str, variation: int) -> Task:
    options = {"task": name, "variation": variation, "family": name}
    return Task(f"scienceworld/{name}/{variation}", "scienceworld", variation, options)


def _plain(text: str) -> str:
    return str(text).strip() or "Nothing is said."
