"""One attempt of an evaluation: its task, and what readers see of it."""

from msgspec.structs import asdict, replace

from r3l.algorithms.advantages import SUCCESS
from r3l.records import SlotResult, Task
from r3l.views.attempt_view import AttemptView, view


class Conversation(AttemptView, kw_only=True):
    """One attempt at one task. `attempt` counts the attempts at the task from 0. `family`: the
    environment if there are several, otherwise the kind of task ("" if unknown). An agent's calls
    are left out, and so are times, which differ when an evaluation is repeated."""

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
    def tokens(self) -> int:
        """The number of tokens in all responses."""
        return sum(step.length for step in self.steps)

    @property
    def success(self) -> bool:
        return self.earned >= SUCCESS


def conversation(task: Task, attempt: int, result: SlotResult, *, several: bool) -> Conversation:
    """Returns the conversation of a finished slot. `several`: there are several environments."""
    family = task.env if several else str(task.options.get("family", ""))
    if played := result.trajectory:
        played = replace(played, extra=replace(played.extra, tape=b""))
    shown = view(replace(result, trajectory=played, reflection=None))
    steps = tuple(replace(step, seconds=0.0) for step in shown.steps)
    fields = asdict(shown) | {"steps": steps, "seconds": None}
    return Conversation(**fields, task_id=task.task_id, attempt=attempt, family=family)
