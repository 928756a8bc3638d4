"""Answers requests from the tape: the recorded calls of an earlier attempt, found by hash.

    of a retry:
    request ─► hash ───► on the tape, before the pivot ─► the recorded reply, with its exact tokens
                  │  └─► on the tape, from the pivot on ─► sampled
                  └────► not on the tape ─► sampled, if it follows a new reply or all calls up to
                                            the pivot have come; otherwise the replay diverged
    of an unfinished attempt that is continued:
    request ─► hash ───► on the tape, after the same calls ─► the recorded reply
                  └────► otherwise ─► sampled

The agent runs its own tools again, so equal requests prove that the tools gave equal results.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.dialects.chat_completions import AgentRequest
from actors.gateway.call_tree import Node, canonical
from r3l.errors import ReplayDiverged
from r3l.rollout.agent_chat import AgentMessage
from r3l.rollout.policy_interface import Sample
from r3l.views.tape import BY_REQUEST, WHOLE, TapedCall, difference, messages_of, without


@dataclass(frozen=True)
class RecordedCall:
    """A call of an earlier attempt. `given`: ids of the tokens that the call's messages added.
    `sample`: None if the reply's tokens were not kept."""

    call: TapedCall
    given: tuple[int, ...] = ()
    sample: Sample | None = None

    def answer(self, node: Node) -> None:
        """Copies the recorded reply into `node`, with the reply's tokens if they were kept."""
        node.taped, node.reply, node.seconds = True, self.call.reply, self.call.seconds
        node.finish, node.stop = self.call.finish, self.call.stop
        if self.sample is not None:  # otherwise, the call after the reply opens a conversation
            node.given, node.sample = self.given, self.sample
        if self.call.untrained in BY_REQUEST:
            node.untrained = self.call.untrained
        elif self.sample is not None:
            node.untrained = ""


class TapePlayer(ABC):
    """Answers a new process of the agent from the calls of a tape, in any order. Also repeats the
    complete replies of other models and MCP servers (`passed`)."""

    def __init__(self, recorded: Sequence[RecordedCall], passed: Sequence[TapedCall] = ()) -> None:
        self.recorded, self.calls = recorded, [each.call for each in recorded]
        self.passed = passed
        self._nodes: dict[int, Node] = {}
        """The calls that were made again, by their numbers on the tape."""
        self._passed = [call for call in passed if call.finish == WHOLE and call.reply]

    def take_passed(self, request_hash: str) -> TapedCall | None:
        """Takes an unused call of `passed`, found by its hash. Returns None if there is none."""
        call = next((call for call in self._passed if call.request_hash == request_hash), None)
        if call is not None:
            self._passed.remove(call)
        return call

    def take(self, request_hash: str, request: AgentRequest, node: Node) -> RecordedCall | None:
        """Takes the recorded call that answers a request. Returns None if the reply must be
        sampled. Raises ReplayDiverged."""
        number = self._find(request_hash, node)
        return None if number is None else self.recorded[number]

    def _find(self, request_hash: str, node: Node) -> int | None:
        """Takes the first unused call that fits a request, and returns its number."""
        for number, call in enumerate(self.calls):
            unused = number not in self._nodes and call.request_hash == request_hash
            if unused and self._fits(number, node):
                self._nodes[number] = node
                return number
        return None

    @abstractmethod
    def _fits(self, number: int, node: Node) -> bool:
        """Returns whether a recorded call with a request's hash answers the request."""


class ContinuingPlayer(TapePlayer):
    """Continues an unfinished attempt.

    A request that follows the same calls as on the tape gets the recorded reply, with its exact
    tokens. Other requests are sampled, because a reply may be trained only in the context in which
    it was sampled. An untrained reply whose tokens were not kept is repeated as text, whatever
    calls it follows.
    """

    def _fits(self, number: int, node: Node) -> bool:
        call = self.calls[number]
        if self.recorded[number].sample is None:
            return bool(call.reply) and (call.untrained in BY_REQUEST or bool(node.untrained))
        parent = self._nodes.get(call.parent)
        return bool(call.reply) and node.parent is parent and (parent is None) == (call.parent < 0)


class RetryPlayer(TapePlayer):
    """Plays a retry: repeats the replies to the calls before `pivot`, even if a call does not
    follow the same call as on the tape.

    Until the agent makes the pivot's call, also repeats the replies of other models and, if
    `stateful`, of MCP servers. A request that is not on the tape must follow a new reply or come
    after all calls up to the pivot. `pivot_node`: the pivot's call, or None before the agent makes
    it.
    """

    def __init__(
        self,
        recorded: Sequence[RecordedCall],
        pivot: int,
        passed: Sequence[TapedCall] = (),
        ignore: Sequence[str] = (),
    ) -> None:
        super().__init__(recorded, passed)
        self.pivot, self.ignore = pivot, ignore
        self.pivot_node: Node | None = None
        self.stateful = False
        self._open = set(range(pivot + 1))

    def take_passed(self, request_hash: str) -> TapedCall | None:
        return super().take_passed(request_hash) if self.pivot_node is None else None

    def take(self, request_hash: str, request: AgentRequest, node: Node) -> RecordedCall | None:
        """Takes the recorded call that answers a request. Returns None if the reply must be
        sampled. Raises ReplayDiverged if the agent left the tape before the pivot."""
        number = self._find(request_hash, node)
        if number is None:
            self._check_left(request, node)
            return None
        self._open.discard(number)
        if number == self.pivot:
            self.pivot_node = node
        recorded = self.recorded[number]
        return recorded if recorded.call.reply and number < self.pivot else None

    def check_met(self) -> None:
        """Raises ReplayDiverged if the agent did not make all recorded calls up to the pivot."""
        if self._open:
            number = min(self._open)
            raise diverged(f"the agent ended before it made the recorded call {number}", number)

    def _fits(self, number: int, node: Node) -> bool:
        return True

    def _check_left(self, request: AgentRequest, node: Node) -> None:
        """Raises ReplayDiverged unless a request that is not on the tape may be made here."""
        if self._open and all(each.taped for each in node.chain()[:-1]):
            number = min(self._open)
            shown = difference(messages_of(self.calls, number), request.messages, self.ignore)
            raise diverged(f"call {number} differs from the recorded one: {shown}", number)


def diverged(how: str, call: int) -> ReplayDiverged:
    return ReplayDiverged(f"agent: {how}", cause="replay_diverged", step=call)


def hash_of_request(request: AgentRequest, ignore: Sequence[str] = ()) -> str:
    """Hashes a request. Key order, tool-call ids and text that matches `ignore` do not change the
    hash."""
    ids: dict[str, int] = {}
    whole: list[Any] = [
        [_comparable(message, ids, ignore) for message in request.messages],
        request.tools,
        [request.choice, request.max_tokens, request.stop, request.json_schema, request.trained],
    ]
    more = [request.choices, request.parallel, request.arguments]
    if more != [(), True, "{}"]:  # most requests ask for none of them
        whole.append(more)
    return hash_of_passed(whole)


def hash_of_passed(request: Any, ignore: Sequence[str] = ()) -> str:
    """Hashes a request's JSON. Ignores text that matches a pattern of `ignore`."""
    text = without(json.dumps(request, sort_keys=True, ensure_ascii=False), ignore)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _comparable(message: AgentMessage, ids: dict[str, int], ignore: Sequence[str]) -> list[object]:
    """Returns the parts of a message that the hash covers. Replaces tool-call ids by numbers."""
    calls = message.get("tool_calls") or ()
    content, answered = without(message.get("content") or "", ignore), message.get("tool_call_id")
    return [
        message["role"],
        content.strip() if message["role"] == "assistant" else content,
        message.get("name"),
        [
            [
                ids.setdefault(call["id"], len(ids)),
                call["function"]["name"],
                canonical(call["function"]["arguments"]),
            ]
            for call in calls
        ],
        answered and ids.setdefault(answered, len(ids)),
    ]
