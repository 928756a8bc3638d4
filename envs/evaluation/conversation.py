"""One attempt of an evaluation: its task, and what readers see of it."""

from msgspec import structs

from r3l.algorithms.advantages import SUCCESS
from r3l.records import SlotResult, Task
from r3l.views.attempt_view import AttemptView, view


class Conversation(AttemptView, kw_only=True):
    """One attempt at one task. `attempt` counts the attempts at the task from 0. `family`: the
    environment, if there are several, or else the kind of task, "" if unknown."""

    task_id: str
    attempt: int
    family: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.task_id, self.attempt

    @property
    def earned(self) -> float:
        """The reward; a failed attempt earns nothing."""
        return self.reward or 0.0

    @property
    def success(self) -> bool:
        return self.earned >= SUCCESS


def conversation(task: Task, attempt: int, result: SlotResult, *, several: bool) -> Conversation:
    """The conversation of a finished slot, without times, in which an evaluation that is played
    again differs. `several`: the evaluation plays several environments."""
    family, shown = task.env if several else str(task.options.get("family", "")), view(result)
    steps = tuple(structs.replace(step, seconds=0.0) for step in shown.steps)
    fields = structs.asdict(shown) | {"steps": steps, "seconds": None, "calls": ()}
    return Conversation(**fields, task_id=task.task_id, attempt=attempt, family=family)
