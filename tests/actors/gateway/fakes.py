"""A tree of calls with replies made by hand, in a template with tools."""

import json
from typing import Any

from actors.gateway.call_tree import CallTree, Node
from actors.gateway.parsers import Reply
from r3l.rollout.agent_chat import PROBE_TOOLS, AgentChat, tool_call
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import Sample
from tests.r3l.fakes import END, CharTokenizer
from tests.r3l.rollout.test_agent_chat import QWEN

TOOLS = list(PROBE_TOOLS)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id}


def calling(number: int, **arguments: Any) -> Reply:
    call = tool_call("add_one", json.dumps(arguments), f"call{number:05d}")
    return Reply("so", "because", (call,))


class Agent:
    """Makes calls of a tree; remembers what the engine was given and what it sampled."""

    def __init__(self) -> None:
        self.tree = CallTree(AgentChat(ChatFormat(CharTokenizer(QWEN))))
        self.sampled: dict[tuple[int, ...], list[int]] = {}
        """What was sampled -> its context; what is sampled differs from call to call."""

    def call(
        self, messages: list[dict[str, Any]], reply: Reply, tools: Any = TOOLS, *, seen: bool = True
    ) -> Node:
        node = self.tree.next(messages, tools)
        self.tree.add(node)
        context = node.context()
        number = len(self.tree.nodes)
        tokens = (*self.tree.chat.chat.encode(f"{reply.text} {number}"), END)
        self.sampled[tokens] = context
        node.sample = Sample(tokens, (-0.5,) * len(tokens), number, number, "stop")
        node.reply, node.seen = reply.message(), seen
        return node
