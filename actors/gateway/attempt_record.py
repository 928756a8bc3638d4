"""Turns the calls of an attempt into its record: conversations, texts, and the tape of all calls.

leaves the agent saw ─► chains root → leaf ─► the main one is the trajectory,
                                              the others its segments; each reply trained once
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from actors.gateway.call_tree import CallTree, Node
from r3l.errors import EnvironmentFailed
from r3l.records import Extra, Role, Segment, Trajectory
from r3l.rollout.agent_chat import AgentMessage

Train = Literal["main", "all"]


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: reward (1.0 is full success), reward parts, closing remark and
    finish."""

    reward: float
    parts: dict[str, float] = field(default_factory=dict)
    feedback: str = ""
    finish: str = "terminated"


@dataclass
class _Chain:
    """One conversation as a growing sequence."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    steps: list[Node] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> _Chain:
        chain = cls()
        for node in nodes:
            chain.ids += node.given
            chain.logprobs += [0.0] * len(node.given)
            if node.sample is None:
                continue
            start, tokens = len(chain.ids), node.sample.token_ids
            chain.ids += tokens
            chain.logprobs += [0.0] * len(tokens) if node.constrained else node.sample.logprobs
            if not node.constrained:
                chain.steps.append(node)
                chain.spans.append((start, len(chain.ids)))
        return chain

    def arrays(self) -> dict[str, Any]:
        """Returns the arrays that a trajectory and a segment have in common."""
        samples = [node.sample for node in self.steps]
        return {
            "token_ids": np.array(self.ids, np.int32),
            "logprobs": np.array(self.logprobs, np.float32),
            "step_spans": np.array(self.spans, np.int32).reshape(-1, 2),
            "step_versions": np.array([s.version for s in samples if s], np.int32),
            "step_newest_versions": np.array([s.newest_version for s in samples if s], np.int32),
        }


def conversations(tree: CallTree, train: Train) -> list[_Chain]:
    """Returns the trained conversations of an attempt: the main one, then the others, newest first.
    With `train` main, only those with the first call's system prompt and tools."""
    leaves = [leaf for leaf in tree.leaves() if any(not n.constrained for n in leaf.chain())]
    if not leaves:
        return []
    first = _kind(tree.nodes[0])
    ordered = sorted(leaves, key=lambda leaf: (_kind(leaf) == first, tree.nodes.index(leaf)))[::-1]
    kept = [leaf for leaf in ordered if train == "all" or _kind(leaf) == first]
    return [_Chain.of(leaf.chain()) for leaf in kept or ordered[:1]]


def trajectory(
    tree: CallTree,
    outcome: Outcome,
    *,
    role: Role,
    slot: int,
    temperature: float,
    train: Train,
    tape: bytes = b"",
) -> Trajectory:
    """Returns an attempt as a record.

    Raises EnvironmentFailed if there is no call to train.
    """
    main, *others = _trained_once(conversations(tree, train))
    chain, _ = main
    decode = tree.chat.chat.text
    nodes = chain.steps
    return Trajectory(
        role=role,
        slot=slot,
        **chain.arrays(),
        step_seconds=np.array([node.seconds for node in nodes], np.float32),
        reward=outcome.reward,
        system=_system(nodes[0].root.messages),
        observations=(*map(_observation, nodes), outcome.feedback),
        actions=tuple(decode(node.sample.token_ids) for node in nodes if node.sample),
        finish=outcome.finish,
        feedback=outcome.feedback,
        temperature=temperature,
        extra=Extra(
            reward_parts=outcome.parts,
            step_cut=np.array([_cut(node) for node in nodes], np.bool_),
            segments=tuple(Segment(**each.arrays(), start=start) for each, start in others),
            tape=tape,
        ),
    )


def _trained_once(chains: Sequence[_Chain]) -> list[tuple[_Chain, int]]:
    """Returns each conversation that has a step of its own, with the number of steps before it
    that an earlier conversation trains. Raises EnvironmentFailed if there is none."""
    known: set[int] = set()
    kept = []
    for chain in chains:
        start = sum(id(node) in known for node in chain.steps)  # shared steps come first
        if start < len(chain.steps):
            kept.append((chain, start))
            known |= {id(node) for node in chain.steps}
    if not kept:
        raise EnvironmentFailed(
            "agent: no call of this attempt can be trained: none was answered, or a grammar "
            "(tool_choice, response_format) shaped every reply",
            cause="agent_no_calls",
        )
    return kept


def _kind(node: Node) -> tuple[str, str]:
    return _system(node.root.messages), node.root.tools


def _system(messages: Sequence[AgentMessage]) -> str:
    shown = [str(m.get("content") or "") for m in messages if m["role"] == "system"]
    return "\n".join(shown)


def _observation(node: Node) -> str:
    """Returns what a call showed the policy, as text."""
    shown = [message for message in node.messages if message["role"] != "system"]
    return "\n".join(str(message.get("content") or "") for message in shown)


def _cut(node: Node) -> bool:
    return node.sample is not None and node.sample.finish_reason == "length"
