"""A request continues the conversation that it repeats, or begins a new one."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from actors.agents.attempt_record import trajectory
from actors.gateway.call_tree import canonical, same_reply
from actors.gateway.parsers import Reply
from envs.agents.agent_steps import Outcome
from tests.actors.gateway.fakes import TOOLS, Agent, calling, result, system, user

OPENING = [system("be brief"), user("add")]


def test_a_tool_result_continues_the_reply_with_the_very_ids_that_were_sampled() -> None:
    agent = Agent()
    first = agent.call(OPENING, reply := calling(1, a=1))
    second = agent.call([*OPENING, reply.message(), result("call00001", "2")], Reply("done"))
    assert second.parent is first and len(second.messages) == 1
    assert first.sample is not None
    before = [*first.context(), *first.sample.token_ids]
    assert second.context()[: len(before)] == before


def test_a_client_may_drop_the_reasoning_and_serialise_arguments_in_its_own_way() -> None:
    agent = Agent()
    first = agent.call(OPENING, reply := calling(1, a=1, b=[2, "x"]))
    message = reply.message()
    del message["reasoning_content"]
    message["tool_calls"][0]["function"]["arguments"] = '{"b":[2,"x"],"a":1}'
    again = agent.call([*OPENING, message, result("call00001", "2")], Reply("done"))
    assert again.parent is first


def test_another_text_or_argument_or_system_prompt_begins_a_new_conversation() -> None:
    agent = Agent()
    agent.call(OPENING, reply := calling(1, a=1))
    for change in (
        {"content": "so so"},
        {"reasoning_content": "another thought"},
        {"tool_calls": calling(1, a=2).message()["tool_calls"]},
    ):
        rewritten = [*OPENING, reply.message() | change, result("call00001", "2")]
        assert agent.call(rewritten, Reply("done")).parent is None
    handover = [system("you are another"), *OPENING[1:], reply.message(), result("call00001", "2")]
    assert agent.call(handover, Reply("done")).parent is None
    other_tools = [*OPENING, reply.message(), result("call00001", "2")]
    assert agent.call(other_tools, Reply("done"), TOOLS[:1]).parent is None


def test_interleaved_agents_continue_their_own_conversations() -> None:
    agent = Agent()
    one = agent.call([system("one"), user("go")], Reply("north"))
    two = agent.call([system("two"), user("go")], Reply("north"))
    last = agent.call(
        [system("one"), user("go"), Reply("north").message(), user("and now?")], Reply("south")
    )
    assert last.parent is one and two.parent is None


def test_of_equal_replies_the_ids_of_the_calls_decide_which_one_was_meant() -> None:
    agent = Agent()
    first = agent.call(OPENING, one := calling(1, a=1))
    second = agent.call(OPENING, two := calling(2, a=1))
    for reply, node, call in ((one, first, "call00001"), (two, second, "call00002")):
        after = agent.call([*OPENING, reply.message(), result(call, "2")], Reply("done"))
        assert after.parent is node


def test_canonical_arguments_keep_what_is_no_object() -> None:
    assert canonical('{"b": 1, "a": 2}') == canonical('{"a":2,"b":1}')
    assert canonical("{oops ") == "{oops "
    assert not same_reply(Reply("a").message(), {"role": "assistant", "content": "b"})


EDITS = ("none", "drop reasoning", "reserialise", "rewrite", "delete", "swap", "double")


def edited(messages: list[dict[str, Any]], edit: str, at: int) -> list[dict[str, Any]]:
    """What a harness does to its copy of the conversation."""
    changed = [dict(message) for message in messages]
    replies = [m for m in changed if m["role"] == "assistant"]
    at %= len(changed)
    if edit == "drop reasoning":
        for message in replies:
            message.pop("reasoning_content", None)
    elif edit == "reserialise":
        for message in replies:
            message["tool_calls"] = [
                call | {"function": call["function"] | {"arguments": json.dumps(
                    json.loads(call["function"]["arguments"]), indent=1, sort_keys=True)}}
                for call in message.get("tool_calls", ())
            ]  # fmt: skip
    elif edit == "rewrite" and replies:
        replies[at % len(replies)]["content"] = "I meant something else"
    elif edit == "delete" and at:
        del changed[at]
    elif edit == "swap" and 0 < at < len(changed) - 1:
        changed[at], changed[at + 1] = changed[at + 1], changed[at]
    elif edit == "double" and at:
        changed.insert(at, changed[at])
    return changed


@given(st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 9), st.booleans()), max_size=12))
def test_no_trained_token_has_another_context_than_the_one_it_was_sampled_in(
    moves: list[tuple[str, int, bool]],
) -> None:
    agent, messages = Agent(), list(OPENING)
    for number, (edit, at, seen) in enumerate(moves):
        reply = calling(number, a=at) if at % 2 else Reply(f"step {at}")
        agent.call(messages, reply, seen=seen)
        after = result(f"call{number:05d}", "2") if reply.calls else user("and now?")
        messages = edited([*messages, reply.message(), after], edit, at)
    agent.call(messages, Reply("done"))
    played = trajectory(agent.tree, Outcome(1.0), slot=0, temperature=1.0, train="all")
    trained = []
    for sequence in played.conversations():
        ids = sequence.token_ids.tolist()
        for step, (start, end) in enumerate(sequence.step_spans.tolist()):
            assert agent.sampled[tuple(ids[start:end])] == ids[:start]
            trained += [tuple(ids[start:end])] if step >= sequence.extra.start else []
    assert len(trained) == len(set(trained))
    received = [n for n in agent.tree.nodes if n.seen and n.sample is not None]
    assert {n.sample.token_ids for n in received if n.sample} <= set(trained)
