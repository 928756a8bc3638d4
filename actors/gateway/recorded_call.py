"""What a session knows of the tape of an earlier attempt, and the digests by which requests are
found on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from actors.gateway.call_tree import Node, canonical
from actors.gateway.chat_completions import AgentRequest
from r3l.rollout.agent_chat import AgentMessage
from r3l.rollout.policy_interface import Sample
from r3l.views.tape import TapedCall, without


@dataclass(frozen=True)
class Recorded:
    """A call of an earlier attempt. `given`: the ids that its messages added; `sample`: its reply,
    None if the tokens were not kept. Then only the text is repeated, and a call that follows it
    begins a new conversation."""

    call: TapedCall
    given: tuple[int, ...] = ()
    sample: Sample | None = None

    def answer(self, node: Node) -> None:
        """Gives a call the recorded reply, with its tokens."""
        node.taped, node.reply, node.seconds = True, self.call.reply, self.call.seconds
        node.finish = self.call.finish
        if self.sample is not None:
            node.given, node.sample = self.given, self.sample


class Tape(Protocol):
    """Answers requests as an earlier attempt did (actors.agents.tape_player). `pivot_node`: the
    call from which a retry samples, when it has come; `stateful`: whether the world is put back
    then."""

    pivot_node: Node | None
    stateful: bool

    def take(self, digest: str, request: AgentRequest, node: Node) -> Recorded | None:
        """Returns the recorded call that answers a request, None if it is to be sampled. Raises
        ReplayDiverged if the request does not belong to the attempt."""

    def take_passed(self, digest: str) -> TapedCall | None:
        """Returns the recorded call of another model that answers a request, once, until the pivot
        has come. None if it is to be asked."""


def digest_of(request: AgentRequest, ignore: Sequence[str] = ()) -> str:
    """Returns a digest that is equal for requests with the same meaning. The ids of tool calls and
    the order of keys do not count, nor does what a pattern of `ignore` matches in the text of a
    message."""
    ids: dict[str, int] = {}
    whole = [
        [_comparable(message, ids, ignore) for message in request.messages],
        request.tools,
        [request.choice, request.max_tokens, request.stop, request.json_schema, request.trained],
    ]
    return digest_of_passed(whole)


def digest_of_passed(request: Any, ignore: Sequence[str] = ()) -> str:
    """Returns a digest of a request as it is. What a pattern of `ignore` matches does not count."""
    text = without(json.dumps(request, sort_keys=True, ensure_ascii=False), ignore)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _comparable(message: AgentMessage, ids: dict[str, int], ignore: Sequence[str]) -> list[object]:
    """Returns what a message says, with the ids of tool calls as numbers in their order."""
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
