"""Plays a new process of an agent up to a call of an earlier attempt, without sampling.

    request ─► digest ─► on the tape, before the pivot ─► the recorded reply, with its exact tokens
                  │  └─► on the tape, from the pivot on ─► sampled
                  └────► not on the tape ─► sampled, if it follows from what was sampled; else it
                                            diverged

Tools run for real, so equal requests prove that the world gave equal answers.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from actors.gateway.call_tree import Kind, Node, system_of
from actors.gateway.chat_completions import AgentRequest
from actors.gateway.recorded_call import Recorded
from r3l.errors import RecordError, ReplayDiverged
from r3l.process.notices import notice
from r3l.records import Trajectory
from r3l.rollout.env_interface import Retry
from r3l.rollout.policy_interface import Sample
from r3l.views.tape import MCP, WHOLE, TapedCall, difference, messages_of, read_tape


class TapePlayer:
    """Plays the calls of a tape, in any order.

    The first `pivot` calls are answered from the tape, and what other models were asked before it
    (`passed`). All of them and the call `pivot` itself, if there is one (-1: none of them), must
    come before any request that neither is on the tape nor follows from a new reply. `pivot_node`:
    that call, when it has come; `stateful`: whether the world is put back then.
    """

    def __init__(
        self,
        recorded: Sequence[Recorded],
        pivot: int,
        ignore: Sequence[str] = (),
        passed: Sequence[TapedCall] = (),
    ) -> None:
        self.recorded, self.pivot, self.ignore = recorded, pivot, ignore
        self.calls = [each.call for each in recorded]
        self.pivot_node: Node | None = None
        self.stateful = False
        self._open = set(range(min(pivot + 1, len(recorded))))
        self._by_digest: defaultdict[str, deque[int]] = defaultdict(deque)
        for number, call in enumerate(self.calls):
            self._by_digest[call.digest].append(number)
        self.passed = passed
        self._passed: defaultdict[str, deque[TapedCall]] = defaultdict(deque)
        for call in passed:
            if call.finish == WHOLE and call.reply:
                self._passed[call.digest].append(call)

    def repeats_tools(self) -> bool:
        """Whether the tape has all replies of MCP servers before the pivot."""
        before = self.calls[self.pivot].began if self.pivot < len(self.calls) else math.inf
        calls = [call for call in self.passed if call.dialect == MCP and call.began < before]
        return all(call.finish == WHOLE and call.reply for call in calls)

    def take_passed(self, digest: str) -> TapedCall | None:
        """Returns the recorded call of another model that answers a request, once, until the pivot
        has come. None if it is to be asked."""
        calls = self._passed[digest]
        return calls.popleft() if calls and self.pivot_node is None else None

    def take(self, digest: str, request: AgentRequest, node: Node) -> Recorded | None:
        """Returns the recorded call that answers a request, None if it is to be sampled. Raises
        ReplayDiverged if the request does not belong to the attempt."""
        if numbers := self._by_digest[digest]:
            number = numbers.popleft()
            self._open.discard(number)
            self.pivot_node = node if number == self.pivot else self.pivot_node
            recorded = self.recorded[number]
            return recorded if number < self.pivot and recorded.call.reply else None
        if self._open and all(each.taped for each in node.chain()[:-1]):
            number = min(self._open)
            shown = difference(messages_of(self.calls, number), request.messages, self.ignore)
            raise diverged(f"call {number} differs from the recorded one: {shown}", number)
        return None

    def check_met(self) -> None:
        """Raises ReplayDiverged unless all the calls that had to come have come."""
        if self._open:
            number = min(self._open)
            raise diverged(f"the agent ended without the recorded call {number}", number)


class Continuation(TapePlayer):
    """Plays the calls of an attempt that lost its actor: a request that continues the same calls
    gets the recorded reply, with the tokens that the policy read for it. Any other is sampled,
    since every reply may be trained in the context in which it was sampled. A reply that a grammar
    shaped is not trained: if its tokens were not kept, its text is repeated."""

    def __init__(self, left: Trajectory) -> None:
        super().__init__(recorded_calls(left), -1, passed=passed_calls(left))
        self._nodes: dict[int, Node] = {}

    def take(self, digest: str, request: AgentRequest, node: Node) -> Recorded | None:
        """Returns the recorded call that answers a request, once; None if it is to be sampled."""
        for number in self._by_digest[digest]:
            recorded, call = self.recorded[number], self.calls[number]
            parent = self._nodes.get(call.parent)
            follows = node.parent is parent and (parent is None) == (call.parent < 0)
            kept = follows if recorded.sample is not None else node.untrained
            if kept and call.reply:
                self._by_digest[digest].remove(number)
                self._nodes[number] = node
                return recorded
        return None


def recorded_calls(attempt: Trajectory) -> list[Recorded]:
    """Reads the calls of a recorded attempt with their exact tokens. Raises ReplayDiverged if its
    tape is damaged."""
    try:
        calls = [call for call in read_tape(attempt.extra.tape) if not call.model]
    except RecordError as error:
        raise diverged(str(error), 0) from error
    conversations = attempt.conversations()
    recorded = []
    for call in calls:
        if call.conversation < 0:
            recorded.append(Recorded(call))
            continue
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
        recorded.append(Recorded(call, tuple(own.token_ids[start : call.read].tolist()), sample))
    return recorded


def passed_calls(attempt: Trajectory) -> list[TapedCall]:
    """Reads the calls of other models of a recorded attempt, whose tape can be read."""
    return [call for call in read_tape(attempt.extra.tape) if call.model]


def retry_of(base: Trajectory, step: int, ignore: Sequence[str] = ()) -> TapePlayer:
    """Returns a player of an attempt up to a step of its main conversation. Raises
    ReplayDiverged."""
    recorded, read = recorded_calls(base), int(base.step_spans[step, 0])
    places = [(each.call.conversation, each.call.read) for each in recorded]
    if (0, read) not in places:
        raise diverged(f"the tape lacks the call of step {step}", 0)
    return TapePlayer(recorded, places.index((0, read)), ignore, passed_calls(base))


def main_kind(base: Trajectory, *, restarts: bool) -> Kind | None:
    """Returns the kind of an attempt's main conversation. None if it is that of the first call and
    the retry restarts: then the system prompt may differ. Raises ReplayDiverged."""
    calls = [each.call for each in recorded_calls(base)]
    main = next((call for call in calls if call.conversation == 0), None)
    if main is None:
        return None
    kind = base.system, main.tools
    if restarts and (main is calls[0] or kind == (system_of(calls[0].messages), calls[0].tools)):
        return None
    return kind


class Replays:
    """Decides how the retries of an actor begin: from the tape or, after `limit` retries in a row
    whose replay diverged, at the start of the attempt."""

    def __init__(self, limit: int, ignore: Sequence[str] = ()) -> None:
        self.limit, self.ignore, self.in_a_row = limit, ignore, 0

    def player(self, retry: Retry) -> TapePlayer | None:
        """Returns the player of a retry; None for a restart."""
        if self.in_a_row >= self.limit:
            return None
        return retry_of(retry.base, retry.pivot, self.ignore)

    def diverged(self, error: ReplayDiverged) -> None:
        self.in_a_row += 1
        if self.in_a_row == self.limit:
            notice(
                f"retries of the agent restart from now on: {self.limit} in a row could not be "
                f"replayed (actor.agent.max_divergences), the last because {error}"
            )

    def check(self, made: Trajectory, retry: Retry) -> None:
        """Raises ReplayDiverged unless a retry has the tokens of its base attempt before the
        pivot."""
        base, steps = retry.base, retry.pivot
        end = int(base.step_spans[steps - 1, 1]) if steps else 0
        if made.pivot != steps or not np.array_equal(made.token_ids[:end], base.token_ids[:end]):
            raise diverged("the retry's main conversation has another beginning", steps)
        self.in_a_row = 0


def diverged(how: str, call: int) -> ReplayDiverged:
    return ReplayDiverged(f"agent: {how}", cause="replay_diverged", step=call)
