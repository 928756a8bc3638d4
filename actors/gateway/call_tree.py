"""The calls of one attempt as a tree of exact tokens.

    request (all its messages) ─► blocks: new messages, reply, new messages, reply, …, new messages
                                     │ walk from a root: each block and each reply must match
                                     ▼
              a node: the messages since its parent + the ids they added + what was sampled

A request that continues a node's conversation becomes a child of this node. Any other request
becomes a new root, which is rendered whole. The newest call need not be the parent, because agents
call in parallel, rewrite, compact and hand over conversations. This module does no input or output.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.dialects.chat_completions import AgentRequest
from r3l.errors import UserError
from r3l.rollout.agent_chat import AgentChat, AgentMessage, Tool, plain_arguments, tool_call
from r3l.rollout.policy_interface import Sample
from r3l.views.tape import LONGEST_MISSED, TapedCall

Block = tuple[AgentMessage, ...]
Kind = tuple[str, tuple[str, ...]]
"""The system prompt of a conversation and the names of its tools."""


@dataclass(eq=False)
class Node:
    """One call. `messages`: the messages that the call adds. `given`: the token ids between the
    parent's reply and this call's reply. `heard`: the numbers of the calls whose replies the agent
    had received before it made this call. `asked`: the request, without its messages."""

    parent: Node | None
    messages: Block
    tools: tuple[Tool, ...]
    given: tuple[int, ...]
    number: int = 0  # place in the order of requests
    sample: Sample | None = None
    reply: AgentMessage = field(default_factory=dict)  # empty until it is sampled
    finish: str = ""
    stop: str = ""  # the stop text that ended the reply
    untrained: str = ""  # grammar or asked (r3l.views.tape.UNTRAINED), if never trained
    missed: tuple[int, ...] = ()  # a free reply that did not fit the request, so was not the answer
    heard: frozenset[int] = frozenset()
    seen: bool = False  # the agent received the reply
    taped: bool = False  # the reply comes from an earlier attempt
    guided: tuple[int, ...] = ()  # read in place of `given` in a call with guidance
    dialect: str = ""
    request_hash: str = ""
    began: float = 0.0  # seconds after the attempt's start
    seconds: float = 0.0
    arguments: str = "{}"  # of the chat template, as JSON
    asked: AgentRequest | None = None

    def chain(self) -> list[Node]:
        """Returns the calls from the root to this one."""
        chain, node = [self], self.parent
        while node is not None:
            chain.append(node)
            node = node.parent
        return chain[::-1]

    def context(self, *, guided: bool = False) -> list[int]:
        """Returns all token ids before this call's reply, with guidance if `guided`."""
        ids: list[int] = []
        for node in self.chain():
            ids += (node.guided if guided else ()) or node.given
            if node is not self and node.sample is not None:
                ids += node.sample.token_ids
        return ids

    @property
    def kind(self) -> Kind:
        names = tuple(tool["function"]["name"] for tool in self.tools)
        return system_of(self.chain()[0].messages), names


@dataclass
class CallTree:
    """All calls of one attempt, in the order of their requests. `most_tokens`: the context size;
    None: no limit."""

    chat: AgentChat
    most_tokens: int | None = None
    nodes: list[Node] = field(default_factory=list)

    def next(
        self,
        messages: Sequence[AgentMessage],
        tools: Sequence[Tool],
        arguments: str = "{}",
        ready: Node | None = None,
    ) -> Node:
        """Makes the node of a request. Does not add the node to the tree. Raises UserError if the
        chat template refuses the request, TextTooLong if its messages have too many tokens.

        `arguments`: arguments of the chat template, as JSON. `ready`: a node made earlier from the
        same request. Its tokens are reused if the request still continues the same call.
        """
        read = json.dumps(self.chat.read_arguments(arguments), sort_keys=True)
        parent, new = self._place(messages, tuple(tools), read)
        own = parent.tools if parent else tuple(tools)
        if ready is not None and ready.parent is parent:
            given = ready.given
        else:
            given = self._encoded(parent, new, own, read, self.most_tokens)
        return Node(parent, tuple(new), own, given, len(self.nodes), arguments=read)

    def add(self, node: Node) -> None:
        """Adds the node of the next call."""
        assert node.number == len(self.nodes)  # no other node was added since it was made
        node.heard = frozenset(each.number for each in self.nodes if each.seen)
        self.nodes.append(node)

    def branches_with(self, node: Node) -> int:
        """Returns how many conversations the tree would have with `node`, including those without a
        reply."""
        nodes = [*self.nodes, node]
        return len(nodes) - len({each.parent for each in nodes if each.parent})

    def guide(self, node: Node, guidance: str) -> None:
        """Shows guidance to the policy in a call. Does nothing if the conversation already shows
        guidance. Raises UserError if the chat template refuses the guidance."""
        if any(each.guided for each in node.chain()):
            return
        messages, chat = list(node.messages), self.chat.with_arguments(node.arguments).chat
        if node.parent is not None:
            messages.append({"role": chat.guide, "content": guidance})
        elif messages[0]["role"] == "system":
            messages[0] = messages[0] | {"content": f"{messages[0]['content']}\n{guidance}"}
        else:
            messages.insert(0, {"role": "system", "content": guidance})
        try:
            node.guided = self._encoded(node.parent, messages, node.tools, node.arguments)
        except UserError:  # its roles must alternate
            if not node.messages:
                raise
            *before, last = node.messages
            joined = last | {"content": f"{last.get('content') or ''}\n\n{guidance}"}
            node.guided = self._encoded(node.parent, [*before, joined], node.tools, node.arguments)

    def _encoded(
        self,
        parent: Node | None,
        new: Sequence[AgentMessage],
        tools: Sequence[Tool],
        arguments: str,
        most: int | None = None,
    ) -> tuple[int, ...]:
        """Returns the token ids that a call's new messages add to the conversation."""
        chat = self.chat.with_arguments(arguments)
        if parent is None:
            return chat.open(for_template(new), tools, most)
        assert parent.sample is not None  # only these are continued
        made = parent.reply.get("tool_calls") or ()
        calls = [(call["id"], call["function"]["name"]) for call in made]
        closing = chat.chat.close(parent.sample.token_ids)
        return (*closing, *chat.following(calls, for_template(new), tools, most))

    def leaves(self, *, unseen: bool = False) -> list[Node]:
        """Returns the last answered call of every conversation. `unseen`: includes calls whose
        reply the agent did not receive."""
        seen = [node for node in self.nodes if (unseen or node.seen) and node.sample is not None]
        parents = {node.parent for node in seen}
        return [node for node in seen if node not in parents]

    def tape(
        self, conversations: Mapping[Node, int] | None = None, known: Collection[Node] = ()
    ) -> list[TapedCall]:
        """Makes a tape of all calls. `conversations`: the index of each call's conversation in the
        record; without it, every call whose reply the agent received counts as recorded. `known`:
        the calls that are trained in another attempt."""
        seen = {node: -1 for node in self.nodes if node.seen}
        places = seen if conversations is None else conversations
        return [
            self._taped(node, places.get(node, -1), _untrained(node, places, known))
            for node in self.nodes
        ]

    def _taped(self, node: Node, conversation: int, untrained: str) -> TapedCall:
        return TapedCall(
            dialect=node.dialect,
            request_hash=node.request_hash,
            parent=-1 if node.parent is None else node.parent.number,
            messages=node.messages,
            reply=node.reply,
            finish=node.finish,
            stop=node.stop,
            tools=node.kind[1],
            began=node.began,
            seconds=node.seconds,
            tokens=len(node.sample.token_ids) if node.sample else 0,
            read=len(node.context()),
            conversation=conversation,
            trained=not untrained,
            untrained=untrained,
            missed=self.chat.chat.text(node.missed)[:LONGEST_MISSED] if node.missed else "",
        )

    def replied(self, message: AgentMessage) -> bool:
        """Whether a message is a whole reply of the policy in this attempt."""
        return any(
            node.finish == "stop" and same_reply(node.reply, message)
            for node in self.nodes
            if node.reply
        )

    def _place(
        self, messages: Sequence[AgentMessage], tools: tuple[Tool, ...], arguments: str
    ) -> tuple[Node | None, Sequence[AgentMessage]]:
        """Returns (the node that a request continues, the request's new messages). Returns (None,
        all messages) for a new conversation."""
        *earlier, (new, _) = _blocks(messages)
        front: list[Node | None] = [None]
        for block, reply in earlier:
            assert reply is not None  # only the last block has none
            front = [
                node
                for node in self.nodes
                if any(node.parent is parent for parent in front)
                and (node.parent is not None or (node.tools, node.arguments) == (tools, arguments))
                and [*map(_key, node.messages)] == [*map(_key, block)]
                and node.sample is not None
                and node.reply
                and same_reply(node.reply, reply)
            ]
            if not front:
                return None, messages
        # Equal conversations may be sampled more than once: the agent's ids tell them apart.
        best = max(reversed(front), key=lambda node: _likeness(node, earlier))
        return best, new if best is not None else messages


def _untrained(node: Node, recorded: Collection[Node], known: Collection[Node]) -> str:
    """Returns why the reply to a call is not trained: a key of UNTRAINED, or "" if it is."""
    if node in known:
        return "base"
    if node.untrained or node in recorded:
        return node.untrained
    if node.sample is None:
        return "no_reply"
    return "side" if node.seen else "unseen"


def system_of(messages: Sequence[AgentMessage]) -> str:
    shown = [str(m.get("content") or "") for m in messages if m["role"] == "system"]
    return "\n".join(shown)


def _blocks(messages: Sequence[AgentMessage]) -> list[tuple[Block, AgentMessage | None]]:
    """Splits a conversation into pairs (messages, reply). The last pair is (the messages after the
    last reply, None)."""
    blocks: list[tuple[Block, AgentMessage | None]] = []
    block: list[AgentMessage] = []
    for message in messages:
        if message["role"] == "assistant":
            blocks.append((tuple(block), message))
            block = []
        else:
            block.append(message)
    return [*blocks, (tuple(block), None)]


def _key(message: AgentMessage) -> tuple[Any, ...]:
    """Returns a key that is equal for copies of the same message."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return (
        message["role"],
        (message.get("content") or "").strip(),
        message.get("tool_call_id"),
        message.get("name"),
        [(function["name"], canonical(function["arguments"])) for function in calls],
    )


def same_reply(reply: AgentMessage, message: AgentMessage) -> bool:
    """Whether a message has the text, tools and arguments of the sampled reply. The reasoning of
    the message must be missing or the same."""
    reasoning = str(message.get("reasoning_content") or "").strip()
    return _key(reply) == _key(message) and reasoning in ("", reply.get("reasoning_content"))


def canonical(arguments: str) -> str:
    """Normalises the spaces and the order of keys in JSON text."""
    value = plain_arguments(arguments)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _likeness(
    node: Node | None, replies: Sequence[tuple[Block, AgentMessage | None]]
) -> tuple[int, int]:
    """Measures how well a node's conversation fits a request: first by tool-call ids and reasoning,
    then by the number of replies that the agent received."""
    chain = node.chain() if node else []
    same = 0
    for known, (_, message) in zip(chain, replies, strict=False):
        if message is not None:
            same += [c["id"] for c in message.get("tool_calls", ())] == [
                c["id"] for c in known.reply.get("tool_calls", ())
            ]
            same += message.get("reasoning_content") == known.reply.get("reasoning_content")
    return same, sum(known.seen for known in chain)


def for_template(messages: Sequence[AgentMessage]) -> list[AgentMessage]:
    """Returns messages for chat templates: a missing text is "", and arguments are mappings."""
    shown = []
    for message in messages:
        calls = [
            tool_call(c["function"]["name"], plain_arguments(c["function"]["arguments"]), c["id"])
            for c in message.get("tool_calls") or ()
        ]
        text = {"content": message.get("content") or ""}
        shown.append(message | text | ({"tool_calls": calls} if calls else {}))
    return shown
