"""One attempt of an evaluation: its texts, its end and its reward."""

from r3l.algorithms.advantages import SUCCESS
from r3l.records import Record, SlotResult, Task


class Turn(Record):
    """One observation and the policy's response to it.

    `tokens`: of the response. `cut`: its token budget cut it off. `reward`: of this step; None if
    the attempt was recorded without rewards of single steps.
    """

    observation: str
    action: str
    tokens: int
    reward: float | None = None
    cut: bool = False


class Conversation(Record):
    """One attempt at one task. `attempt` counts the attempts at the task from 0.

    `family`: the environment, if there are several, or else the kind of task, "" if unknown.
    `cause`: why the attempt failed; such an attempt has no turns. `faults`: errors of the
    environment that did not end the attempt. `length`: all its tokens. `last`: the last
    observation. The other fields are those of r3l.records.Trajectory.
    """

    task_id: str
    attempt: int
    family: str = ""
    reward: float = 0.0
    finish: str = ""
    cause: str = ""
    faults: tuple[str, ...] = ()
    feedback: str = ""
    length: int = 0
    system: str = ""
    turns: tuple[Turn, ...] = ()
    last: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.task_id, self.attempt

    @property
    def success(self) -> bool:
        return self.reward >= SUCCESS

    @property
    def tokens(self) -> int:
        """The tokens that the policy sampled."""
        return sum(turn.tokens for turn in self.turns)


def conversation(task: Task, attempt: int, result: SlotResult, *, several: bool) -> Conversation:
    """The conversation of a finished slot. `several`: the evaluation plays several environments."""
    family = task.env if several else str(task.options.get("family", ""))
    played = result.trajectory
    if played is None:
        return Conversation(task.task_id, attempt, family, cause=result.cause)
    rewards = played.extra.step_rewards.tolist() or [None] * played.num_steps
    cuts = played.extra.step_cut.tolist() or [False] * played.num_steps
    tokens = (played.step_spans[:, 1] - played.step_spans[:, 0]).tolist()
    turns = zip(played.observations, played.actions, tokens, rewards, cuts, strict=False)
    return Conversation(
        task.task_id,
        attempt,
        family,
        reward=played.reward,
        finish=played.finish,
        faults=played.faults,
        feedback=played.feedback,
        length=len(played.token_ids),
        system=played.system,
        turns=tuple(Turn(*turn) for turn in turns),
        last=played.observations[-1],
    )
