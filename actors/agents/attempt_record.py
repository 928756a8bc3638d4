"""Turns the calls of an attempt into its record: conversations, texts, and the tape of all calls.

leaf of the call tree ─► chain of calls from root to leaf ─► the main chain is the trajectory,
                                        other chains are its segments; each reply is trained once

In a retry, the main conversation contains the pivot, and replies from the tape are not trained.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from actors.gateway.call_tree import CallTree, Node, system_of
from envs.agents.agent_steps import Outcome
from r3l.errors import EnvironmentFailed
from r3l.records import Extra, Int32, Segment, Shown, Trajectory
from r3l.rollout.attempt import Tokens
from r3l.rollout.env_interface import Retry
from r3l.views.tape import TapedCall, write_tape

Train = Literal["main", "all"]


class _Chain:
    """One conversation as a sequence of tokens. `steps`: the calls whose replies may be trained."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes, self.tokens = nodes, Tokens()
        self.steps: list[Node] = []
        for node in nodes:
            self.tokens.given(node.given)
            if node.sample is not None and node.untrained:
                self.tokens.given(node.sample.token_ids)
            elif node.sample is not None:
                self.tokens.sampled(node.sample)
                self.steps.append(node)

    @property
    def shown(self) -> Shown | None:
        """What the policy read in place of the tokens between the first and the last call with
        guidance; None without guidance."""
        guided = [k for k, node in enumerate(self.nodes) if node.guided]
        if not guided:
            return None
        first, last = self.nodes[guided[0]], self.nodes[guided[-1]]
        keep = len(first.context()) - len(first.given)
        read = last.context(guided=True)[keep:]  # equal up to there
        return Shown(np.array(read, np.int32), keep, len(last.context()))


def conversations(
    tree: CallTree, train: Train, pivot: Node | None = None, *, unseen: bool = False
) -> list[_Chain]:
    """Returns an attempt's trained conversations, the main conversation first.

    - Sort keys: contains `pivot`; has the main kind (the kind of the first trained call); is newer
    - If `train` is "main", keeps only the main kind. If that leaves nothing, keeps the first.
    - `unseen`: also uses replies that the agent has not received
    """
    chains = [leaf.chain() for leaf in tree.leaves(unseen=unseen)]
    chains = [chain for chain in chains if any(not node.untrained for node in chain)]
    first = next((node.kind for node in tree.nodes if not node.untrained), None)

    def order(chain: list[Node]) -> tuple[bool, bool, int]:
        return pivot in chain, chain[-1].kind == first, chain[-1].number

    ordered = sorted(chains, key=order, reverse=True)
    kept = [chain for chain in ordered if train == "all" or chain[-1].kind == first]
    return [_Chain(chain) for chain in kept or ordered[:1]]


def trajectory(
    tree: CallTree,
    outcome: Outcome,
    *,
    slot: int,
    temperature: float,
    train: Train,
    retry: Retry | None = None,
    at: Node | None = None,
    others: Sequence[TapedCall] = (),
) -> Trajectory:
    """Returns an attempt's record.

    `retry`: what is retried, and `at`: the call from which it is. `others`: the calls to other
    models and MCP servers. `outcome.finish`: empty while the attempt runs. Raises EnvironmentFailed
    if no call is trained.
    """
    taped = {node for node in tree.nodes if node.taped} if retry else set[Node]()
    chains = conversations(tree, train, at, unseen=not outcome.finish)
    (chain, pivot), *further = kept = _trained_once(chains, taped)
    where = {node: c for c in reversed(range(len(kept))) for node in kept[c][0].nodes}
    decode = tree.chat.chat.text
    nodes = chain.steps
    of: dict[str, Any] = retry.fields | {"pivot": pivot} if retry else {}
    return Trajectory(
        slot=slot,
        **chain.tokens.recorded(),
        step_seconds=np.array([node.seconds for node in nodes], np.float32),
        reward=outcome.reward,
        system=system_of(chain.nodes[0].messages),
        observations=(*map(_observation, nodes), outcome.feedback),
        actions=tuple(decode(node.sample.token_ids) for node in nodes if node.sample),
        **of,
        shown=chain.shown,
        finish=outcome.finish,
        feedback=outcome.feedback,
        temperature=temperature,
        extra=Extra(
            reward_parts=outcome.parts,
            step_cut=np.array(chain.tokens.cuts, np.bool_),
            segments=tuple(
                Segment(**each.tokens.recorded(), start=start, after=_after(each, chain))
                for each, start in further
            ),
            tape=write_tape([*tree.tape(where, taped), *others]),
        ),
    )


def _after(chain: _Chain, main: _Chain) -> Int32:
    """Returns, for each step of `chain`, how many steps of `main` came earlier."""
    called, mine = ([node.number for node in each.steps] for each in (main, chain))
    return np.searchsorted(called, mine).astype(np.int32)


def _trained_once(chains: Sequence[_Chain], known: set[Node]) -> list[tuple[_Chain, int]]:
    """Returns (conversation, number of old steps) for each conversation with new steps. A step is
    old if it is in `known` or in an earlier conversation. Raises EnvironmentFailed if no step is
    new."""
    kept = []
    for chain in chains:
        start = sum(node in known for node in chain.steps)  # shared steps come first
        if start < len(chain.steps):
            kept.append((chain, start))
            known = known.union(chain.steps)
    if not kept:
        raise EnvironmentFailed(
            "agent: no call of this attempt can be trained; use the model policy (not "
            "policy-untrained), leave out tool_choice and response_format, and wait for each reply",
            cause="agent_no_calls",
        )
    return kept


def _observation(node: Node) -> str:
    """Returns what a call showed the policy, as text."""
    shown = [message for message in node.messages if message["role"] != "system"]
    return "\n".join(str(message.get("content") or "") for message in shown)
