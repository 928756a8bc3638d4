"""An attempt's calls become one trajectory and its segments."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agents.attempt_record import conversations, token_counts, trajectory
from actors.gateway.call_tree import Node
from actors.gateway.parsers import Reply
from envs.agents.agent_steps import Outcome
from r3l.errors import EnvironmentFailed
from r3l.records import Origin, Trajectory
from r3l.rollout.env_interface import Retry
from r3l.rollout.policy_interface import Sample
from r3l.run.settings.actor import AgentConfig
from r3l.views.tape import read_tape
from tests.actors.gateway.fakes import TOOLS, Agent, calling, result, system, user

OPENING = [system("be brief"), user("add")]


def record(
    agent: Agent, train: str = AgentConfig().train, reward: float = 1.0, **retry: Any
) -> Trajectory:
    return trajectory(
        agent.tree,
        Outcome(reward, {"sum": 1.0}, "well done"),
        slot=3,
        temperature=0.5,
        train=train,  # type: ignore[arg-type]
        **retry,
    )


def test_a_chain_of_calls_is_one_trajectory_with_the_texts_of_its_steps() -> None:
    agent = Agent()
    agent.call(OPENING, reply := calling(1, a=1))
    agent.call([*OPENING, reply.message(), result("call00001", "2")], Reply("done"))
    played = record(agent)
    assert played.system == "be brief" and played.num_steps == 2 and not played.extra.segments
    assert played.observations == ("add", "2", "well done")
    assert played.actions == ("so 1", "done 2")
    assert (played.reward, played.temperature, played.slot) == (1.0, 0.5, 3)


def test_what_was_shown_runs_from_the_first_call_with_guidance_to_the_last() -> None:
    agent = Agent()
    first = agent.call(OPENING, reply := Reply("a"))
    talk = [*OPENING, reply.message(), user("go on")]
    second = agent.call(talk, again := Reply("b"))
    third = agent.call([*talk, again.message(), user("and now?")], Reply("c"))
    assert record(agent).shown is None
    for guided in ([second], [second, third], [first, third]):
        for node in agent.tree.nodes:
            node.guided = (7, *node.given, 8, 9) if node in guided else ()
        played = record(agent)
        ids, mask = played.as_shown()
        assert ids.tolist() == [*third.context(guided=True), *third.sample.token_ids]  # type: ignore[union-attr]
        own = [node for node in agent.tree.nodes if node.number >= guided[-1].number]
        sampled = [token for node in own if node.sample for token in node.sample.token_ids]
        assert ids[mask].tolist() == sampled
        shown = played.shown
        assert shown is not None and shown.keep == len(guided[0].context()) - len(guided[0].given)
        assert played.token_ids.tolist() == [*third.context(), *third.sample.token_ids]  # type: ignore[union-attr]


def test_a_retry_says_what_it_retries() -> None:
    agent = Agent()
    agent.call(OPENING, reply := Reply("a")).taped = True
    agent.call([*OPENING, reply.message(), user("go on")], Reply("b"))
    base, start = record(agent), Origin("g9", 3, 1)
    for retry in (Retry(base, 1, "go", 2, reflection="why"), Retry(base, 1, origin=start)):
        made = record(agent, retry=retry, at=agent.tree.nodes[1])
        assert (made.of, made.origin, made.reflection) == (retry.of, retry.origin, retry.reflection)
        assert made.pivot == 1 and base.pivot == base.of == -1


def test_a_fork_trains_its_shared_steps_once() -> None:
    agent = Agent()
    agent.call(OPENING, reply := Reply("a"))
    agent.call([*OPENING, reply.message(), user("left")], Reply("b"))
    agent.call([*OPENING, reply.message(), user("right")], Reply("c"))
    played = record(agent)
    (segment,) = played.extra.segments
    assert played.actions == ("a 1", "c 3") and segment.start == 1
    trained = [each.responses_from(each.extra.start).sum() for each in played.conversations()]
    assert sum(trained) == len("a 1") + len("b 2") + len("c 3") + 3 == played.generated_tokens


@pytest.mark.parametrize(("train", "segments"), [("main", 0), ("all", 1)])
def test_calls_with_another_system_prompt_are_trained_if_asked(train: str, segments: int) -> None:
    agent = Agent()
    agent.call(OPENING, Reply("a"))
    agent.call([system("give it a title"), user("a")], Reply("b"))
    played = record(agent, train)
    assert played.actions == ("a 1",) and len(played.extra.segments) == segments


def test_a_reply_that_was_not_received_is_not_trained() -> None:
    agent = Agent()
    agent.call(OPENING, Reply("a"), seen=False)
    agent.call(OPENING, Reply("b"))
    assert record(agent).actions == ("b 2",)


def test_the_main_conversation_is_that_of_the_first_call_that_is_trained() -> None:
    agent = Agent()
    agent.call([system("you are a user"), user("begin")], Reply("a")).untrained = "asked"
    agent.call(OPENING, Reply("b"))
    agent.call([system("give it a title"), user("b")], Reply("c"))
    played = record(agent, "main")
    assert played.actions == ("b 2",) and played.system == "be brief"
    assert not played.extra.segments
    assert len(record(agent, "all").extra.segments) == 1


def test_a_reply_that_a_grammar_shaped_is_read_and_not_trained() -> None:
    agent = Agent()
    node: Node = agent.call(OPENING, reply := Reply("a"))
    node.untrained = "asked"
    agent.call([*OPENING, reply.message(), user("and now?")], Reply("b"))
    played = record(agent)
    assert played.actions == ("b 2",)
    agent.tree.nodes[1].untrained = "asked"
    assert conversations(agent.tree, "all") == []
    with pytest.raises(EnvironmentFailed, match=r"no call .*trained"):
        record(agent)


def why(played: Trajectory) -> list[str]:
    return [call.untrained for call in read_tape(played.extra.tape)]


def test_autogens_answer_after_its_tool_is_trained() -> None:
    """With reflect_on_tool_use: the same conversation, but the second request has no tools."""
    agent = Agent()
    agent.call(OPENING, reply := calling(1, a=1))
    told = [*OPENING, reply.message(), result("call00001", "2")]
    assert agent.call(told, Reply("It is 2."), tools=[]).parent is None
    played = record(agent)
    assert played.actions == ("so 1",) and len(played.extra.segments) == 1
    assert why(played) == ["", ""] and why(record(agent, "main")) == ["", "side"]


def test_the_answer_of_a_code_agent_that_has_used_up_its_steps_is_trained() -> None:
    """smolagents replaces the system prompt after max_steps, and repeats the whole conversation."""
    agent = Agent()
    talk = [system("You are an expert assistant who can solve any task using code blobs."),
            user("New task:\nWhat is 12 times 13?")]  # fmt: skip
    for step in range(3):
        agent.call(talk, reply := Reply(f"Thought: I try {step}.\n<code>\nf({step})\n</code>"), [])
        talk += [reply.message(), user("Observation:\nExecution logs:\nLast output:\nNone")]
    last = system("An agent tried to answer a user query but it got stuck and failed to do so.")
    asked = user("Based on the above, please provide an answer to the following user task:")
    agent.call([last, *talk[1:], asked], Reply("156"), [])
    played = record(agent)
    assert played.num_steps == 3 and why(played) == [""] * 4
    assert why(record(agent, "main")) == ["", "", "", "side"]
    counts = token_counts(agent.tree, record(agent, "main"))
    assert counts["sampled"] == counts["trained"] + counts["untrained_side"]
    assert counts["untrained_side"] == len("156 4") + 1


RACE = [[f"{name} {step}" for step in range(steps)] for name, steps in
        (("north", 2), ("east", 2), ("south", 3), ("west", 1), ("east", 2))]  # fmt: skip
"""What five sub-agents say; two have the same system prompt."""


def raced(order: list[int], *, together: bool) -> Agent:
    """Sub-agents, each with its own conversation, race; then a call puts their answers together.
    `order`: the branch that makes the next move, which is to ask or to receive a reply. `together`:
    all ask before any of them gets a reply."""
    agent, waiting = Agent(), dict[int, Node]()
    talks = [[system(f"go {said[0].split()[0]}"), user(f"task {n}")] for n, said in enumerate(RACE)]

    def ask(talk: list[dict[str, Any]], reply: str) -> Node:
        node = agent.tree.next(talk, TOOLS)
        agent.tree.add(node)
        ids = agent.tree.chat.chat.encode(reply)
        node.sample = Sample(ids, (-0.5,) * len(ids), 1, 1, "stop")
        node.reply = Reply(reply).message()
        return node

    def move(branch: int) -> None:
        talk, turn = talks[branch], len(talks[branch]) // 2 - 1
        if branch in waiting:
            node = waiting.pop(branch)
            node.seen = True
            talk += [node.reply, user("go on")]
        elif turn < len(RACE[branch]):
            waiting[branch] = ask(talk, f"{RACE[branch][turn]} of {branch}")

    first = sorted(range(len(RACE)), key=order.index) if together else []
    for branch in [*first, *order, *(n for n in range(len(RACE)) for _ in range(8))]:
        move(branch)
    ask([system("sum up"), user("all")], "done").seen = True
    return agent


def trained(played: Trajectory) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The trained replies, each with its context."""
    found = Counter[tuple[tuple[int, ...], tuple[int, ...]]]()
    for each in played.conversations():
        ids = tuple(each.token_ids.tolist())
        for start, end in each.step_spans[each.extra.start :].tolist():
            found[ids[:start], ids[start:end]] += 1
    return found


ORDERS = st.permutations([n for n, said in enumerate(RACE) for _ in range(2 * len(said))])


@given(ORDERS, ORDERS)
@settings(max_examples=10)
def test_the_order_of_racing_agents_does_not_change_what_is_trained(
    one: list[int], other: list[int]
) -> None:
    known = trained(record(raced(one, together=False)))
    assert trained(record(raced(other, together=False))) == known
    assert len(known) == sum(map(len, RACE)) + 1 and set(known.values()) == {1}
    main, same = (record(raced(order, together=True)) for order in (one, other))
    assert main.token_ids.tolist() == same.token_ids.tolist() and main.system == "go east"
    kept, again = (trained(record(raced(order, together=True), "main")) for order in (one, other))
    assert kept == again < known


def test_the_last_of_conversations_of_one_kind_is_the_main_one() -> None:
    """After a compaction the new conversation is."""
    agent = Agent()
    agent.call(OPENING, reply := Reply("a"))
    agent.call([*OPENING, reply.message(), user("go on")], Reply("b"))
    agent.call([OPENING[0], user("in short: a, b")], Reply("c"))
    assert record(agent).actions == ("c 3",)


def test_a_retry_whose_pivot_is_not_trained_fails_by_name() -> None:
    agent = Agent()
    agent.call(OPENING, reply := Reply("a")).taped = True
    pivot = agent.call([*OPENING, reply.message(), user("go on")], Reply("b"))
    agent.call([system("give it a title"), user("a")], Reply("c"))
    base = record(agent)
    pivot.untrained = "grammar"
    with pytest.raises(EnvironmentFailed, match=r"no call .*trained"):
        record(agent, retry=Retry(base, 1, "go"), at=pivot)


def test_tokens_are_counted_once_by_what_became_of_them() -> None:
    agent = Agent()
    agent.call(OPENING, reply := Reply("a"))
    shaped = agent.call([*OPENING, reply.message(), user("go on")], Reply("bb"))
    shaped.untrained, shaped.missed = "grammar", (1, 2, 3)
    agent.call([system("you are a user"), user("a")], Reply("ccc")).untrained = "asked"
    agent.call(OPENING, Reply("dddd"), seen=False)
    played = record(agent)
    assert token_counts(agent.tree, played) == {
        "sampled": 4 + 5 + 6 + 7 + 3, "trained": 4, "untrained_grammar": 5, "untrained_asked": 6,
        "untrained_unseen": 7, "untrained_missed": 3,
    }  # fmt: skip
    agent.tree.nodes[0].taped = True
    again = agent.call([*OPENING, reply.message(), user("or so")], Reply("e"))
    retried = record(agent, retry=Retry(played, 1, "go"), at=again)
    counts = token_counts(agent.tree, retried)
    assert counts["trained"] == 4 and why(retried)[0] == "base"
