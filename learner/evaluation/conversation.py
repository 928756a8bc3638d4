"""One attempt of an evaluation: its task, its steps and its result."""

from msgspec.structs import asdict, replace

from r3l.records import SUCCESS, SlotResult, Task
from r3l.views.attempt_view import AttemptView, view


class Conversation(AttemptView, kw_only=True):
    """An attempt at a task, without durations and an agent's calls. `attempt`: counts from 0.
    `family`: the kind of task; with several environments, the environment's name."""

    task_id: str
    attempt: int
    family: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.task_id, self.attempt

    @property
    def earned(self) -> float:
        """The reward, 0 for a failed attempt."""
        return self.reward or 0.0

    @property
    def tokens(self) -> int:
        """The number of tokens in all responses."""
        return sum(step.length for step in self.steps)

    @property
    def success(self) -> bool:
        return self.earned >= SUCCESS


def conversation(task: Task, attempt: int, result: SlotResult, *, several: bool) -> Conversation:
    """Returns a finished slot's conversation. `several`: whether there are several environments."""
    family = task.env if several else str(task.options.get("family", ""))
    if played := result.trajectory:
        played = replace(played, extra=replace(played.extra, tape=b""))
    shown = view(replace(result, trajectory=played))
    steps = tuple(replace(step, seconds=0.0) for step in shown.steps)  # times never repeat
    fields = asdict(shown) | {"steps": steps, "seconds": None}
    return Conversation(**fields, task_id=task.task_id, attempt=attempt, family=family)
