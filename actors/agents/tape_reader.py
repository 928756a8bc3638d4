"""Reads the tape of a recorded attempt. Decides whether a retry replays the tape or restarts.

actors.gateway.session and actors.agents.mcp_relay record what becomes the tape.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from actors.gateway.call_tree import Kind, system_of
from actors.gateway.recorded_call import ContinuingPlayer, RecordedCall, RetryPlayer, diverged
from r3l.errors import RecordError, ReplayDiverged
from r3l.notices import notice
from r3l.records import Trajectory
from r3l.rollout.env_interface import Retry
from r3l.rollout.policy_interface import Sample
from r3l.views.tape import MCP, WHOLE, TapedCall, read_tape


def recorded_calls(attempt: Trajectory) -> list[RecordedCall]:
    """Reads the calls of a recorded attempt with their exact tokens. Raises ReplayDiverged if the
    tape is damaged, or does not fit the record."""
    try:
        calls = [call for call in read_tape(attempt.extra.tape) if not call.model]
        conversations = attempt.conversations()
        return [_recorded(calls, call, conversations) for call in calls]
    except (RecordError, IndexError) as error:
        raise diverged(str(error), 0) from error


def _recorded(
    calls: Sequence[TapedCall], call: TapedCall, conversations: Sequence[Trajectory]
) -> RecordedCall:
    if call.conversation < 0:
        return RecordedCall(call)
    own = conversations[call.conversation]
    reply = slice(call.read, call.read + call.tokens)
    parent = calls[call.parent] if call.parent >= 0 else None
    start = 0 if parent is None else parent.read + parent.tokens
    step = int(own.step_spans[:, 0].searchsorted(call.read))
    trained = step < len(own.step_spans) and int(own.step_spans[step, 0]) == call.read
    sample = Sample(
        token_ids=tuple(own.token_ids[reply].tolist()),
        logprobs=tuple(own.logprobs[reply].tolist()),
        version=int(own.step_versions[step]) if trained else 0,
        newest_version=int(own.step_newest_versions[step]) if trained else 0,
        finish_reason=call.finish,  # type: ignore[arg-type]
    )
    why = "" if trained else call.untrained if call.untrained == "asked" else "grammar"
    call = msgspec.structs.replace(call, untrained=why)
    return RecordedCall(call, tuple(own.token_ids[start : call.read].tolist()), sample)


def continuing_player(attempt: Trajectory) -> ContinuingPlayer:
    """Makes a player that continues an unfinished attempt. Raises ReplayDiverged."""
    return ContinuingPlayer(recorded_calls(attempt), passed_calls(attempt))


def retry_player(attempt: Trajectory, step: int, ignore: Sequence[str] = ()) -> RetryPlayer:
    """Makes a player for a retry from a step of the main conversation. Raises ReplayDiverged."""
    recorded = recorded_calls(attempt)
    places = [(each.call.conversation, each.call.read) for each in recorded]
    place = 0, int(attempt.step_spans[step, 0])
    if place not in places:
        raise diverged(f"the tape lacks the call of step {step}", 0)
    return RetryPlayer(recorded, places.index(place), passed_calls(attempt), ignore)


def passed_calls(attempt: Trajectory) -> list[TapedCall]:
    """Reads the calls of a recorded attempt to other models and MCP servers."""
    return [call for call in read_tape(attempt.extra.tape) if call.model]


def repeats_tools(tape: RetryPlayer) -> bool:
    """Whether a retry's tape has the complete reply to every MCP call before the pivot."""
    before = tape.calls[tape.pivot].began
    calls = [call for call in tape.passed if call.dialect == MCP and call.began < before]
    return all(call.finish == WHOLE and call.reply for call in calls)


def main_kind(base: Trajectory, *, restarts: bool) -> Kind | None:
    """Returns the kind of the main conversation in `base`, or None if the retry's first call sets
    the kind. Raises ReplayDiverged."""
    calls = [each.call for each in recorded_calls(base)]
    main = next((call for call in calls if call.conversation == 0), None)
    if main is None:
        return None
    kind = base.system, main.tools
    # A restart may get another system prompt in its first call.
    if restarts and (main is calls[0] or kind == (system_of(calls[0].messages), calls[0].tools)):
        return None
    return kind


class Replays:
    """Decides whether retries replay a tape. After `limit` divergences in a row, retries start from
    the beginning. A retry that starts inside an attempt of another group never does that, since it
    is compared with attempts that start there too."""

    def __init__(self, limit: int, ignore: Sequence[str] = ()) -> None:
        self.limit, self.ignore, self.in_a_row = limit, ignore, 0

    def player(self, retry: Retry) -> RetryPlayer | None:
        """Returns the player of a retry's tape, or None if the retry is to restart."""
        if self.in_a_row >= self.limit and retry.origin is None:
            return None
        return retry_player(retry.base, retry.pivot, self.ignore)

    def diverged(self, error: ReplayDiverged) -> None:
        self.in_a_row += 1
        if self.in_a_row == self.limit:
            notice(
                f"{self.limit} retries in a row (actor.agent.max_divergences) could not be "
                f"replayed, so retries now start at the agent's first call; last failure: {error}"
            )

    def check(self, made: Trajectory, retry: Retry) -> None:
        """Raises ReplayDiverged unless a retry and its base have equal tokens before the pivot."""
        base, steps = retry.base, retry.pivot
        end = int(base.step_spans[steps - 1, 1]) if steps else 0
        if made.pivot != steps or not np.array_equal(made.token_ids[:end], base.token_ids[:end]):
            raise diverged("the retry differs from its base attempt before the pivot", steps)
        self.in_a_row = 0
