"""ScienceWorld: elementary science experiments in text (AI2, Apache-2.0).
Needs `pip install 'r3l[scienceworld]'`, and Java.

A step is one action. The score is from 0 to 1; a step's reward is the change of the score. A wrong
`focus on` ends the attempt with score 0. All environments of a process share one JVM.
"""

import json
from typing import Any

from envs import requirements
from envs.adapters import jvm
from envs.adapters.action_tags import HOW_TO_ANSWER, NO_ACTION, action_in
from envs.adapters.scienceworld import brief_text
from envs.adapters.scienceworld.science_tasks import LIMITS, listed, named, task_of_seed
from envs.adapters.scienceworld.simulator import START, History, Simulator, Turn
from envs.base import TaskSource
from r3l.rollout.env_interface import EnvSpec, ResetAnswer, StepAnswer

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

    `tasks`: names or patterns of tasks to play, such as `find-*`; `eval_tasks`: the same for an
    evaluation, by default `tasks`; `simplification`: upstream's simplifications, comma separated;
    `max_steps`: step limit of every task, or 0 for 1.5 times its longest gold path, at least 30;
    `brief`: short prompts and observations, for small policies (brief_text.py); `heap_mib`: memory
    of the JVM (an attempt needs 12 MiB); `timeout_s`: time limit of a Java call. Keep `timeout_s`
    below env.step_s, so that a hung JVM is counted as such, not as a hung worker.
    """

    def __init__(
        self,
        *,
        tasks: list[str] | None = None,
        eval_tasks: list[str] | None = None,
        simplification: str = "easy",
        max_steps: int = 0,
        brief: bool = False,
        heap_mib: int = 512,
        timeout_s: float = 50.0,
    ) -> None:
        library = requirements.package("scienceworld", "scienceworld.constants", "scienceworld")
        requirements.program("scienceworld", "java", jvm.INSTALL_JAVA)
        self.names = named(tasks)
        self.listed = listed(tasks, eval_tasks)
        played = {*self.names, *(named(eval_tasks) if eval_tasks is not None else ())}
        self.simplification, self.limit, self.brief = simplification, max_steps, brief
        self.spec = EnvSpec(
            name="scienceworld",
            system_prompt=brief_text.SYSTEM if brief else SYSTEM,
            max_steps=max_steps or max(LIMITS[name] for name in played),
            max_response_tokens=32 if brief else 512,
            sessions=8,
            prompts=brief_text.PROMPTS if brief else {},
        )
        self.simulator = Simulator(str(library.JAR_PATH), heap_mib, timeout_s)
        self.history: History = ()
        self.turn = Turn("", 0.0, True)
        self.ends: list[int] = []

    @staticmethod
    def task_source(
        tasks: list[str] | None = None, eval_tasks: list[str] | None = None, **_: Any
    ) -> TaskSource:
        """Lists upstream's variations: train for training, test for evaluation, dev for warm-up."""
        return listed(tasks, eval_tasks)

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        """Loads the task and variation in `options`. Without `options`, `seed` determines both."""
        chosen = options or task_of_seed(self.listed, seed).options
        self.history = (str(chosen["task"]), str(chosen["variation"]), self.simplification)
        self.turn, self.ends = self.simulator.turn(self.history), []
        return self._shown(self.turn.text), {}

    def step(self, action: str) -> StepAnswer:
        if self.turn.done:
            return "The task has ended.", 0.0, True, False, {}
        before, command = _score(self.turn), action_in(action)
        if command is None or command.lower() in REFUSED:
            nothing = brief_text.NOT_UNDERSTOOD if self.brief else NO_ACTION
            text = "That is not allowed." if command else nothing
        else:
            history = (*self.history, command)
            self.turn = self.simulator.turn(history)
            self.history, text = history, self._shown(self.turn.text)
        self.ends.append(len(self.history))
        done, limit = self.turn.done, self.limit or LIMITS[self.history[0]]
        return text, _score(self.turn) - before, done, not done and len(self.ends) >= limit, {}

    def snapshot(self) -> bytes:
        """Returns the attempt's history as JSON. Java replays it when the attempt continues."""
        return json.dumps([self.history, self.ends, self.turn]).encode()

    def restore(self, state: bytes) -> None:
        history, ends, turn = json.loads(state)
        self.history, self.ends, self.turn = tuple(history), ends, Turn(*turn)
        self.simulator.expect(self.history, self.turn)

    def feedback(self) -> str:
        return f"The score is {round(100 * _score(self.turn))} of 100."

    def demonstration(self) -> list[str]:
        """Returns upstream's gold path up to the end of the task: at most 178 actions. May take
        half a minute."""
        return list(self.simulator.gold(self.history[:START]))

    def close(self) -> None:
        """Releases the JVM, which ends when the process's last environment releases it."""
        self.simulator.close()

    def _shown(self, text: str) -> str:
        plain = brief_text.brief(text) if self.brief else text.strip()
        return plain or "Nothing is said."


def _score(turn: Turn) -> float:
    return min(max(turn.score, 0.0), 1.0)
