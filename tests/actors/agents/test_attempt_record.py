"""An attempt's calls become one trajectory and its segments."""

from typing import Any

import pytest

from actors.agents.attempt_record import conversations, trajectory
from actors.gateway.call_tree import Node
from actors.gateway.parsers import Reply
from envs.agents.agent_steps import Outcome
from r3l.errors import EnvironmentFailed
from r3l.records import Origin, Trajectory
from r3l.rollout.env_interface import Retry
from tests.actors.gateway.fakes import Agent, calling, result, system, user

OPENING = [system("be brief"), user("add")]


def record(agent: Agent, train: str = "main", reward: float = 1.0, **retry: Any) -> Trajectory:
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
    agent.call([system("you are a user"), user("begin")], Reply("a")).untrained = True
    agent.call(OPENING, Reply("b"))
    agent.call([system("give it a title"), user("b")], Reply("c"))
    played = record(agent)
    assert played.actions == ("b 2",) and played.system == "be brief"
    assert not played.extra.segments


def test_a_reply_that_a_grammar_shaped_is_read_and_not_trained() -> None:
    agent = Agent()
    node: Node = agent.call(OPENING, reply := Reply("a"))
    node.untrained = True
    agent.call([*OPENING, reply.message(), user("and now?")], Reply("b"))
    played = record(agent)
    assert played.actions == ("b 2",)
    agent.tree.nodes[1].untrained = True
    assert conversations(agent.tree, "all") == []
    with pytest.raises(EnvironmentFailed, match=r"no call .*trained"):
        record(agent)
