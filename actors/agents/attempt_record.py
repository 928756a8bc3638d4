"""Turns the calls of an attempt into its record: conversations, texts, and the tape of all calls.

leaf of the call tree ─► chain of calls from root to leaf ─► the main chain is the trajectory,
                                        other chains are its segments; each reply is trained once

In a retry, the main conversation contains the pivot, and replies from the tape are not trained.
Neither the trained replies nor the main conversation depend on which of several concurrent calls
comes first.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from actors.gateway.call_tree import CallTree, Kind, Node, system_of
from envs.agents.agent_steps import Outcome
from r3l.errors import EnvironmentFailed
from r3l.records import Extra, Int32, Segment, Shown, Trajectory
from r3l.rollout.attempt import Tokens
from r3l.rollout.env_interface import Retry
from r3l.views.tape import TapedCall, read_tape, write_tape

Train = Literal["main", "all"]


class _Chain:
    """One conversation as a sequence of tokens. `steps`: the calls whose replies may be trained."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes, self.tokens = nodes, Tokens()
        self.steps: list[Node] = []
        for node in nodes:
            self.tokens.add_read(node.given)
            if node.sample is not None and node.untrained:
                self.tokens.add_read(node.sample.token_ids)
            elif node.sample is not None:
                self.tokens.add_response(node.sample)
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
    """Returns an attempt's trained conversations, the main conversation first. Returns [] if no
    reply may be trained.

    - The main conversation is the one with `pivot`, or without a pivot the last one of the main
      kind.
    - The main kind is the kind of `pivot`, or without a pivot the kind of the first call.
    - If `train` is "main", keeps only the main kind.
    - `unseen`: also uses replies that the agent has not received
    """
    chains = [leaf.chain() for leaf in tree.leaves(unseen=unseen)]
    chains = [chain for chain in chains if any(not node.untrained for node in chain)]
    if not chains:
        return []
    started = [chain for chain in chains if pivot in chain]
    kind = _main_kind(started or chains)
    own = [chain for chain in chains if chain[-1].kind == kind]
    main = _last(started or own)
    kept = chains if train == "all" else own
    others = sorted(kept, key=lambda chain: chain[-1].number, reverse=True)
    return [_Chain(main), *(_Chain(chain) for chain in others if chain is not main)]


def _main_kind(chains: Sequence[Sequence[Node]]) -> Kind:
    """Returns the kind of the first call. If several calls were made before the agent had a reply,
    takes the first kind in the order of the alphabet."""
    free = {node.number: node for chain in chains for node in chain if not node.untrained}
    return min(node.kind for node in free.values() if free.keys().isdisjoint(node.heard))


def _last(chains: Sequence[list[Node]]) -> list[Node]:
    """Returns the conversation that no other one follows. If there are several, takes the one with
    the most calls; among equals, the one whose tokens compare highest."""
    ends = [chain for chain in chains if not any(_follows(other, chain) for other in chains)]

    def size(chain: list[Node]) -> tuple[int, list[int]]:
        reply = chain[-1].sample
        return len(chain), [*chain[-1].context(), *(reply.token_ids if reply else ())]

    return max(ends, key=size)


def _follows(chain: Sequence[Node], earlier: Sequence[Node]) -> bool:
    """Whether the agent had the last reply of `earlier` before it began `chain`, or branched it
    off."""
    own = next((node for node in chain if node not in earlier), None)
    return own is not None and earlier[-1].number in own.heard


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

    `retry`: what is retried. `at`: the call at which the retry starts. `others`: the calls to other
    models and MCP servers. `outcome.finish`: empty while the attempt runs. Raises EnvironmentFailed
    if no call is trained.
    """
    taped = {node for node in tree.nodes if node.taped} if retry else set[Node]()
    chains = conversations(tree, train, at, unseen=not outcome.finish)
    (chain, pivot), *further = kept = _trained_once(chains, taped)
    if taped and at is not None and at not in chain.nodes:
        raise _nothing_trained()  # from the pivot on
    where = {node: c for c in reversed(range(len(kept))) for node in kept[c][0].nodes}
    decode = tree.chat.chat.text
    nodes = chain.steps
    of: dict[str, Any] = retry.fields | {"pivot": pivot} if retry else {}
    return Trajectory(
        slot=slot,
        **chain.tokens.record_fields(),
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
                Segment(**each.tokens.record_fields(), start=start, after=_after(each, chain))
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
        raise _nothing_trained()
    return kept


def _nothing_trained() -> EnvironmentFailed:
    return EnvironmentFailed(
        "agent: no call of this attempt can be trained; use the model policy (not "
        "policy-untrained), leave out tool_choice and response_format if the policy does not keep "
        "to them by itself, and wait for each reply",
        cause="agent_no_calls",
    )


def token_counts(tree: CallTree, made: Trajectory) -> Counter[str]:
    """Counts the tokens that were sampled for an attempt: all, the trained ones, and the untrained
    ones by reason. A reason is one of r3l.views.tape.UNTRAINED, or `missed`: the reply did not fit
    its request."""
    counts = Counter[str]()
    for call in read_tape(made.extra.tape):
        if not call.model and call.untrained != "base":
            counts["sampled"] += call.tokens
            counts[f"untrained_{call.untrained}" if call.untrained else "trained"] += call.tokens
    missed = sum(len(node.missed) for node in tree.nodes)
    return +(counts + Counter(sampled=missed, untrained_missed=missed))  # without zeros


def _observation(node: Node) -> str:
    """Returns what a call showed the policy, as text."""
    shown = [message for message in node.messages if message["role"] != "system"]
    return "\n".join(str(message.get("content") or "") for message in shown)
