"""Answers requests from the tape of an earlier attempt, which is searched by a request's digest.

    request ─► digest ─► on the tape, before the pivot ─► the recorded reply, with its exact tokens
                  │  └─► on the tape, from the pivot on ─► sampled
                  └────► not on the tape ─► sampled, if it follows a new reply or all calls up to
                                            the pivot have come; otherwise the replay diverged

The agent runs its own tools again, so equal requests prove that the tools gave equal results.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.gateway.call_tree import Node, canonical
from actors.gateway.chat_completions import AgentRequest
from r3l.errors import ReplayDiverged
from r3l.rollout.agent_chat import AgentMessage
from r3l.rollout.policy_interface import Sample
from r3l.views.tape import WHOLE, TapedCall, difference, messages_of, without


@dataclass(frozen=True)
class Recorded:
    """A call of an earlier attempt. `given`: the token ids that its messages added; `sample`: its
    reply, or None if the reply's tokens were not kept. Then only the reply's text is repeated, and
    a call after the reply begins a new conversation."""

    call: TapedCall
    given: tuple[int, ...] = ()
    sample: Sample | None = None

    def answer(self, node: Node) -> None:
        """Gives a call the recorded reply, with the reply's tokens if they were kept."""
        node.taped, node.reply, node.seconds = True, self.call.reply, self.call.seconds
        node.finish = self.call.finish
        if self.sample is not None:
            node.given, node.sample = self.given, self.sample


class TapePlayer:
    """Plays the calls of a tape, in any order, for a new process of the agent.

    A retry gets recorded replies to the calls before `pivot` and, until the pivot comes, to calls
    to other models (in `passed`). All calls up to the pivot must come before any request that is
    not on the tape and follows no new reply. `pivot_node`: the pivot's call, None until it comes;
    `stateful`: MCP calls get recorded replies too, since the world is put back at the pivot.

    The continuation of an attempt that lost its actor has no pivot (-1). A request that follows
    the same calls gets the recorded reply, with the tokens that the policy read for the reply. Any
    other request is sampled, since a reply may be trained only in the context it was sampled in. An
    untrained reply whose tokens were not kept is repeated as text, whatever calls it follows.
    """

    def __init__(
        self,
        recorded: Sequence[Recorded],
        pivot: int = -1,
        ignore: Sequence[str] = (),
        passed: Sequence[TapedCall] = (),
    ) -> None:
        self.recorded, self.pivot, self.ignore, self.passed = recorded, pivot, ignore, passed
        self.calls = [each.call for each in recorded]
        self.pivot_node: Node | None = None
        self.stateful = False
        self._open = set(range(min(pivot + 1, len(recorded))))
        self._nodes: dict[int, Node] = {}
        self._passed = [call for call in passed if call.finish == WHOLE and call.reply]

    def take_passed(self, digest: str) -> TapedCall | None:
        """Returns an unused recorded call that answers a request to another model or MCP server.
        Returns None if there is none, or if the pivot has come; the server is then asked."""
        call = next((call for call in self._passed if call.digest == digest), None)
        if call is None or self.pivot_node is not None:
            return None
        self._passed.remove(call)
        return call

    def take(self, digest: str, request: AgentRequest, node: Node) -> Recorded | None:
        """Returns an unused recorded call that answers a request; None to sample the reply.
        Raises ReplayDiverged if the request does not belong to the attempt."""
        fitting = (n for n in range(len(self.calls)) if self._answers(n, digest, node))
        if (number := next(fitting, None)) is not None:
            self._nodes[number] = node
            self._open.discard(number)
            if number == self.pivot:
                self.pivot_node = node
            recorded = self.recorded[number]
            return recorded if recorded.call.reply and not 0 <= self.pivot <= number else None
        if self._open and all(each.taped for each in node.chain()[:-1]):
            number = min(self._open)
            shown = difference(messages_of(self.calls, number), request.messages, self.ignore)
            raise diverged(f"call {number} differs from the recorded one: {shown}", number)
        return None

    def check_met(self) -> None:
        """Raises ReplayDiverged unless all recorded calls up to the pivot have come."""
        if self._open:
            number = min(self._open)
            raise diverged(f"the agent ended before it made the recorded call {number}", number)

    def _answers(self, number: int, digest: str, node: Node) -> bool:
        """Returns whether recorded call `number` has this digest and is unused. A continuation also
        requires that the call has a reply and, if the reply's tokens were kept, that it has the
        same parent call as `node`; if they were not kept, that `node` is untrained."""
        call = self.calls[number]
        if call.digest != digest or number in self._nodes:
            return False
        if self.pivot >= 0:
            return True
        if self.recorded[number].sample is None:
            return bool(call.reply) and node.untrained
        parent = self._nodes.get(call.parent)
        return bool(call.reply) and node.parent is parent and (parent is None) == (call.parent < 0)


def diverged(how: str, call: int) -> ReplayDiverged:
    return ReplayDiverged(f"agent: {how}", cause="replay_diverged", step=call)


def digest_of(request: AgentRequest, ignore: Sequence[str] = ()) -> str:
    """Returns a digest that is equal for requests with the same meaning. It leaves out the ids of
    tool calls, the order of keys, and any message text that matches a pattern of `ignore`."""
    ids: dict[str, int] = {}
    whole = [
        [_comparable(message, ids, ignore) for message in request.messages],
        request.tools,
        [request.choice, request.max_tokens, request.stop, request.json_schema, request.trained],
    ]
    return digest_of_passed(whole)


def digest_of_passed(request: Any, ignore: Sequence[str] = ()) -> str:
    """Returns a digest of a request's JSON without the text that a pattern of `ignore` matches."""
    text = without(json.dumps(request, sort_keys=True, ensure_ascii=False), ignore)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _comparable(message: AgentMessage, ids: dict[str, int], ignore: Sequence[str]) -> list[object]:
    """Returns what a message says; tool-call ids become numbers in order of appearance."""
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
