"""Decides what follows when a process of an agent has ended without a record of its attempt. Does
no input or output.

    first ───── killed ────► second                 with the state that a retry saved, if any
      │ not restored, broken    │ not restored, broken
      ▼                         ▼
    bare ────── killed ────► bare second            without the state

If a process ends in any other way, no process follows it: the attempt has failed.
"""

from enum import Enum, auto

from r3l.errors import EnvironmentFailed


class AgentKilled(EnvironmentFailed):
    """The agent's process was killed from outside."""


class RestoreFailed(EnvironmentFailed):
    """A retry's world could not be put back."""


class Stage(Enum):
    """Which process of the agent plays the attempt."""

    FIRST = auto()
    SECOND = auto()
    BARE = auto()
    BARE_SECOND = auto()


class Ended(Enum):
    """How a process ended."""

    KILLED = auto()
    """From outside, for example by the kernel when memory is short."""
    NOT_RESTORED = auto()
    """The saved state could not be put back."""
    BROKEN = auto()
    """With an error of its own, after the saved state had been put back."""
    FAILED = auto()
    """In any other way."""


class Next(Enum):
    """What follows when a process ends, in the words of the log."""

    AGAIN = "it is started once more"
    """With the earlier replies in a base attempt, and with the saved state in a retry."""
    WITHOUT_STATE = "the retry is played without the state"
    GIVE_UP = "the attempt has failed"


MOVES: dict[tuple[Stage, Ended], tuple[Stage, Next]] = {
    (Stage.FIRST, Ended.KILLED): (Stage.SECOND, Next.AGAIN),
    (Stage.FIRST, Ended.NOT_RESTORED): (Stage.BARE, Next.WITHOUT_STATE),
    (Stage.FIRST, Ended.BROKEN): (Stage.BARE, Next.WITHOUT_STATE),
    (Stage.SECOND, Ended.NOT_RESTORED): (Stage.BARE_SECOND, Next.WITHOUT_STATE),
    (Stage.SECOND, Ended.BROKEN): (Stage.BARE_SECOND, Next.WITHOUT_STATE),
    (Stage.BARE, Ended.KILLED): (Stage.BARE_SECOND, Next.AGAIN),
}
"""What follows an end, by the process that ended. Every other end fails the attempt."""


class Processes:
    """The processes of one attempt. `suspicion`: the error that the saved state may have caused. If
    the attempt then succeeds without the state, the state did cause it."""

    def __init__(self) -> None:
        self.stage, self.suspicion = Stage.FIRST, ""

    @property
    def with_state(self) -> bool:
        """Whether the saved state may be put back for the process."""
        return self.stage in (Stage.FIRST, Stage.SECOND)

    def after(self, error: EnvironmentFailed, *, restored: bool = False) -> Next:
        """Returns what follows. `restored`: whether the saved state had been put back."""
        ended = how_ended(error, restored=restored)
        self.stage, following = MOVES.get((self.stage, ended), (self.stage, Next.GIVE_UP))
        if ended is Ended.BROKEN and following is Next.WITHOUT_STATE:
            self.suspicion = f"after a restore {error}"
        return following


def how_ended(error: EnvironmentFailed, *, restored: bool) -> Ended:
    """Returns how a process ended, judging by the error with which its attempt failed."""
    match error:
        case AgentKilled():
            return Ended.KILLED
        case RestoreFailed():
            return Ended.NOT_RESTORED
    return Ended.BROKEN if restored and error.cause == "agent_exit" else Ended.FAILED
