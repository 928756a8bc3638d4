"""What follows the end of an agent's process, by tables of what happened before."""

from itertools import product

import pytest

from actors.agents.next_process import (
    MOVES,
    AgentKilled,
    Ended,
    Next,
    Processes,
    RestoreFailed,
    Stage,
    how_ended,
)
from r3l.errors import EnvironmentFailed

KILLED = AgentKilled("killed", cause="agent_exit")
NOT_RESTORED = RestoreFailed("other files", cause="restore_failed")
EXITED = EnvironmentFailed("exit code 3", cause="agent_exit")
SILENT = EnvironmentFailed("no call", cause="agent_no_calls")
AGAIN, WITHOUT, GIVE_UP = Next.AGAIN, Next.WITHOUT_STATE, Next.GIVE_UP


@pytest.mark.parametrize(
    ("ends", "following", "suspicion"),
    [
        # Errors, and whether the state had been put back; what follows; what the state may cause.
        ([(SILENT, False)], [GIVE_UP], ""),
        ([(SILENT, True)], [GIVE_UP], ""),
        ([(EXITED, False)], [GIVE_UP], ""),
        ([(EXITED, True)], [WITHOUT], "after a restore exit code 3"),
        ([(EXITED, True), (EXITED, False)], [WITHOUT, GIVE_UP], "after a restore exit code 3"),
        ([(NOT_RESTORED, False)], [WITHOUT], ""),
        ([(NOT_RESTORED, False), (EXITED, False)], [WITHOUT, GIVE_UP], ""),
        ([(KILLED, False)], [AGAIN], ""),
        ([(KILLED, True)], [AGAIN], ""),
        ([(KILLED, False), (KILLED, False)], [AGAIN, GIVE_UP], ""),
        ([(KILLED, False), (KILLED, True)], [AGAIN, GIVE_UP], ""),
        ([(KILLED, False), (SILENT, False)], [AGAIN, GIVE_UP], ""),
        ([(KILLED, False), (EXITED, False)], [AGAIN, GIVE_UP], ""),
        ([(KILLED, True), (EXITED, True)], [AGAIN, WITHOUT], "after a restore exit code 3"),
        (
            [(KILLED, False), (NOT_RESTORED, False), (KILLED, False)],
            [AGAIN, WITHOUT, GIVE_UP],
            "",
        ),
        (
            [(EXITED, True), (KILLED, False), (KILLED, False)],
            [WITHOUT, AGAIN, GIVE_UP],
            "after a restore exit code 3",
        ),
        (
            [(NOT_RESTORED, False), (KILLED, False), (EXITED, False)],
            [WITHOUT, AGAIN, GIVE_UP],
            "",
        ),
    ],
)
def test_a_kill_is_forgiven_once_and_the_saved_state_is_left_out_once_it_failed(
    ends: list[tuple[EnvironmentFailed, bool]], following: list[Next], suspicion: str
) -> None:
    processes = Processes()
    told = [processes.after(error, restored=restored) for error, restored in ends]
    assert told == following and processes.suspicion == suspicion
    assert processes.with_state == (WITHOUT not in following)


def test_every_attempt_ends_after_at_most_three_processes() -> None:
    errors = (KILLED, NOT_RESTORED, EXITED, SILENT)
    for ends in product(product(errors, (True, False)), repeat=3):
        processes = Processes()
        assert GIVE_UP in [processes.after(error, restored=restored) for error, restored in ends]


def test_nothing_is_put_back_after_a_stage_without_the_state() -> None:
    for (stage, _), (after, following) in MOVES.items():
        assert following is not GIVE_UP
        assert stage in (Stage.FIRST, Stage.SECOND) or after is Stage.BARE_SECOND


@pytest.mark.parametrize(
    ("error", "restored", "ended"),
    [
        (KILLED, True, Ended.KILLED),  # what killed it was not the state
        (NOT_RESTORED, False, Ended.NOT_RESTORED),
        (EXITED, True, Ended.BROKEN),
        (EXITED, False, Ended.FAILED),
        (SILENT, True, Ended.FAILED),
        # A result may name the same cause.
        (EnvironmentFailed("it says so", cause="restore_failed"), True, Ended.FAILED),
    ],
)
def test_an_end_is_told_from_its_error(
    error: EnvironmentFailed, restored: bool, ended: Ended
) -> None:
    assert how_ended(error, restored=restored) is ended
