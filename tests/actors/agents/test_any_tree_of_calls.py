"""Whatever an agent calls, its attempt has a valid record, or its slot fails with a cause.

Agents fork their conversations, compact them, ask sub-agents, repeat and rewrite. Their attempts
are retried at every step, the retries too, and continued after an actor's death.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agents.agent_attempt import AgentEnvironment, Gateway
from actors.agents.tape_reader import Replays
from actors.dialects.chat_completions import AgentRequest, Refused
from actors.gateway.parsers import ReplyReader
from actors.gateway.session import Session
from envs.agents.agent_runner import AgentFacts, ProcessState
from r3l import codec
from r3l.algorithms.registry import REGISTRY
from r3l.algorithms.shared.re_reading import ReReading
from r3l.records import GroupPlan, SlotResult, Task, Trajectory
from r3l.rollout.agent_chat import AgentChat
from r3l.rollout.env_interface import EnvSpec
from r3l.rollout.exploration import Exploration
from r3l.rollout.group import explore_group
from r3l.rollout.partial import Progress
from r3l.rollout.policy_interface import Sample
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.config import load
from r3l.run.settings.actor import AgentConfig
from tests.actors.agents.test_tape_reader import reflection
from tests.r3l.fakes import ScriptedPolicy
from tests.r3l.rollout.fakes import exploration

TASK = Task("t", "agent", 0)
MAIN, SUB = "Work.", "Give a title."
CAUSES = {"agent_no_calls", "replay_diverged"}
"""Why a slot of these agents may fail."""


@dataclass(frozen=True)
class Move:
    """One call. `kind`: how it continues the conversation number `which` of those so far."""

    kind: str
    which: int = 0
    back: int = 1
    trained: bool = True
    shaped: bool = False
    seen: bool = True


ANY = st.lists(
    st.builds(
        Move,
        st.sampled_from(["grow", "grow", "fork", "compact", "sub", "again", "rewrite"]),
        st.integers(0, 3),
        st.integers(1, 2),
        st.sampled_from([True] * 5 + [False]),
        st.sampled_from([False] * 3 + [True]),
        st.sampled_from([True] * 5 + [False]),
    ),
    min_size=1,
    max_size=5,
)
LONG = [Move("grow"), Move("grow")]
"""A main conversation, so that retries have pivots."""
MOVES = st.one_of(ANY, st.builds(lambda moves: [*LONG, *moves], ANY))


class Counting(ScriptedPolicy):
    """Says another reply each time; remembers what it read and the tokens it sampled. Its weights
    change now and then."""

    def __init__(self) -> None:
        super().__init__(self.say)
        self.read: dict[tuple[int, ...], list[int]] = {}
        self.under_grammar: set[tuple[int, ...]] = set()

    def say(self, prompt: str) -> str:
        if "You review" in prompt:
            return reflection(1)
        number = len(self.prompts)
        fits = "as json" in prompt.rpartition("message ")[2] and number % 4
        return f'{{"reply": {number}}}' if fits else f"reply {number}"

    async def sample(self, token_ids: Sequence[int], params: Any) -> Sample:
        made = await super().sample(token_ids, params)
        self.version += len(self.prompts) % 3 == 0
        self.read[made.token_ids] = list(token_ids)
        if params.json_schema is not None:
            self.under_grammar.add(made.token_ids)
        return made


@dataclass
class Player:
    """A runner whose agent makes its moves in this process. `trainable`: the ids of the replies
    that it got and that may be trained, if they were sampled without a grammar."""

    moves: Sequence[Move]
    sessions: dict[str, Session]
    spec: EnvSpec = field(default_factory=lambda: EnvSpec("agent", "", 256, 64))
    trainable: list[tuple[int, ...]] = field(default_factory=list)

    def prepare(self, task: Any, secret: Any, stored: bool = False) -> AgentFacts:
        return AgentFacts()

    async def start(
        self, variables: dict[str, str], fresh: list[str] | None = None
    ) -> ProcessState:
        session = self.sessions[variables["OPENAI_API_KEY"]]
        talks: list[list[dict[str, Any]]] = []
        for number, move in enumerate(self.moves):
            messages = _request(move, talks, number)
            shaped = {"type": "object"} if move.shaped else None
            asked = AgentRequest(tuple(messages), json_schema=shaped, trained=move.trained)
            try:
                sampling = session.sampling(asked, str(number), "chat", again=False)
                answer = await sampling
            except Refused:
                break
            if not move.seen:  # it ended before the agent got it
                continue
            session.received(sampling)
            node = session.tree.nodes[-1]
            if move.trained and node.sample and not node.taped:
                self.trainable.append(node.sample.token_ids)
            talks.append([*messages, answer["choices"][0]["message"]])
        return ProcessState(exit=0, stdout='{"reward": 0.5}')

    def close(self) -> None:
        """Nothing is open."""


def _request(move: Move, talks: list[list[dict[str, Any]]], number: int) -> list[dict[str, Any]]:
    """The messages of a call; `talks`: those of the earlier ones, with their replies."""
    how = " as json" if move.shaped and number % 2 else ""
    new = {"role": "user", "content": f"message {number}{how}"}
    begun = [{"role": "system", "content": SUB if move.kind == "sub" else MAIN}, new]
    if not talks or move.kind == "sub":
        return begun
    old = [dict(message) for message in talks[-1 - move.which % len(talks)]]
    match move.kind:
        case "compact":
            return [begun[0], {"role": "user", "content": f"summary of {len(old)}"}]
        case "again":
            return old[:-1]
        case "fork":
            return [*old[: max(2, len(old) - 2 * move.back)], new]
        case "rewrite":
            old[-1]["content"] = f"rewritten {number}"
    return [*old, new]


class World:
    """An actor's gateway. Makes what attempts are played in."""

    def __init__(self, moves: Sequence[Move], train: str = "all", replays: int = 999) -> None:
        self.moves, self.policy, self.players = moves, Counting(), list[Player]()
        self.gateway = Gateway(
            self.policy,
            ReplyReader(AgentChat(self.policy.chat), "auto", "auto"),
            ActorMetrics(),
            AgentConfig(train=train),  # type: ignore[arg-type]
            {},
            "http://127.0.0.1:1",
            Replays(replays),
            Mock(take=lambda base: None),
        )

    def make(self, *_: Any) -> AgentEnvironment:
        self.players.append(Player(self.moves, self.gateway.sessions))
        return AgentEnvironment(self.players[-1], self.gateway)

    def explored(self, explore: Any, slots: int, **more: Any) -> list[SlotResult]:
        x = Exploration(TASK, self.policy, self.make, GroupPlan(slots), **more)
        return asyncio.run(explore_group(explore, x))

    def trained(self, attempt: Trajectory) -> Counter[tuple[int, ...]]:
        """The replies that are trained in an attempt, each in the context it was sampled in."""
        found = Counter[tuple[int, ...]]()
        for each in attempt.conversations():
            for start, end in each.step_spans[each.first_played :].tolist():
                reply = tuple(each.token_ids[start:end].tolist())
                found[reply] += 1
                if attempt.shown is None and attempt.of < 0:
                    assert each.token_ids[:start].tolist() == self.policy.read[reply]
        return found


def check(result: SlotResult) -> Trajectory | None:
    """Whether a slot is as it must be. Returns its attempt."""
    assert codec.encode(codec.decode(SlotResult, codec.encode(result))) == codec.encode(result)
    if result.trajectory is None:
        assert result.cause in CAUSES
    return result.trajectory


async def every_retry(x: Exploration) -> None:
    """An attempt, its retry from every step, and the last retry's own retries."""
    slots, of, attempt = iter(range(1, x.plan.slots)), 0, await x.play(0)
    for _ in range(2):
        last = None
        for pivot in range(attempt.num_steps if attempt else 0):
            slot = next(slots)
            if made := await x.retry(slot, of=of, pivot=pivot, guidance="mind the door"):
                last = slot, made
        if last is None:
            break
        of, attempt = last
    for slot in x.open:
        await x.skip(slot, "not_needed")


@given(MOVES, st.sampled_from(["all", "main"]), st.sampled_from([999, 0]))
@settings(max_examples=60)
def test_every_retry_of_any_tree_of_calls_is_recorded_and_trains_each_reply_once(
    moves: list[Move], train: str, replays: int
) -> None:
    """Retries from the tape, and retries that start at the first call."""
    world = World(moves, train, replays)
    results = world.explored(every_retry, 2 * len(moves) + 1)
    played = [result for result in results if result.status != "skipped"]
    assert len(played) == len(world.players)
    for result, player in zip(played, world.players, strict=True):
        attempt = check(result)
        if attempt is not None:
            free = [ids for ids in player.trainable if ids not in world.policy.under_grammar]
            trained, may = world.trained(attempt), Counter(free)
            assert max(trained.values()) == 1 and trained <= may
            if train == "all":
                assert trained == may


@given(MOVES, st.data())
@settings(max_examples=30)
def test_any_tree_of_calls_is_continued_from_any_of_its_progress(
    moves: list[Move], data: st.DataObject
) -> None:
    world, saved = World(moves), list[SlotResult]()

    async def save(result: SlotResult) -> None:
        saved.append(codec.decode(SlotResult, codec.encode(result)))

    async def play(x: Exploration) -> None:
        await x.play(0)

    world.explored(play, 1, progress=Progress(save=save))
    if not saved:
        return
    left = data.draw(st.sampled_from(saved))
    (result,) = world.explored(play, 1, progress=Progress(found=[left]))
    attempt = check(result)
    assert attempt is not None or result.cause == "agent_no_calls"
    if attempt is not None:
        assert max(world.trained(attempt).values()) == 1


SIDE = [Move("sub"), Move("compact"), Move("grow", which=2)]
"""A side conversation and a compaction, each of no more steps than come before a retry's pivot."""


@pytest.mark.parametrize(
    "name", sorted(name for name, kind in REGISTRY.items() if not issubclass(kind, ReReading))
)
def test_every_algorithm_explores_an_agent_with_side_conversations(name: str) -> None:
    plain = ["algorithm.reflection=false"] if name == "r3" else []  # whose context none can read
    config = load(None, [f"algorithm={name}", "env=agent", *plain])
    world = World([*LONG, *SIDE])
    x = exploration(world.policy, config, TASK, world.make)
    results = asyncio.run(explore_group(partial(config.algorithm.explore), x))
    assert [result.slot for result in results] == list(range(x.plan.slots))
    assert not {result.cause for result in results if result.status == "failed"} - CAUSES
    retries = [result.trajectory for result in results if result.of >= 0 and result.trajectory]
    assert all(retry.extra.segments for retry in retries)
    if name == "r3l":
        assert retries and all(retry.pivot == 1 for retry in retries)
    for result in results:
        codec.encode(result)
    for thought in x.reflections.values():
        codec.encode(thought)
