"""Requests with one meaning have one hash; a tape answers those that a retry or a continued attempt
makes again."""

import dataclasses

import pytest

from actors.dialects.chat_completions import AgentRequest
from actors.gateway.call_tree import Node
from actors.gateway.recorded_call import (
    ContinuingPlayer,
    RecordedCall,
    RetryPlayer,
    hash_of_request,
)
from r3l.errors import ReplayDiverged
from r3l.rollout.agent_chat import tool_call
from r3l.rollout.policy_interface import Sample
from r3l.views.tape import TapedCall


def test_a_hash_ignores_ids_spaces_and_order_but_nothing_else() -> None:
    def request(name: str, arguments: str, number: str, text: str = "3") -> AgentRequest:
        called = {
            "role": "assistant",
            "content": None,
            "tool_calls": [tool_call(name, arguments, number)],
        }
        return AgentRequest((called, {"role": "tool", "content": text, "tool_call_id": number}))

    one = hash_of_request(request("add", '{"a": 1, "b": 2}', "x"))
    assert one == hash_of_request(request("add", '{"b":2,"a":1}', "y"))
    assert one != hash_of_request(request("add", '{"a": 2, "b": 2}', "x"))
    assert one != hash_of_request(request("add", '{"a": 1, "b": 2}', "x", "3 "))
    asked = request("add", '{"a": 1, "b": 2}', "x")
    assert one != hash_of_request(dataclasses.replace(asked, trained=False))
    noted = hash_of_request(request("add", "{}", "x", "12:30"), [r"\d+:\d+"])
    assert noted == hash_of_request(request("add", "{}", "x", "12:31"), [r"\d+:\d+"])
    dated = hash_of_request(request("add", "{}", "x", "Date: 1\n3"), ["Date: .*"])  # one line of it
    assert dated == hash_of_request(request("add", "{}", "x", "Date: 2\n3"), ["Date: .*"])
    assert dated != hash_of_request(request("add", "{}", "x", "Date: 2\n4"), ["Date: .*"])


def recorded(*parents: int) -> list[RecordedCall]:
    """Calls whose hashes are h0, h1, …, each after one of the others (-1: after none)."""
    reply, sample = {"role": "assistant", "content": "yes"}, Sample((1,), (-0.5,), 0, 0, "stop")
    return [
        RecordedCall(TapedCall("chat", f"h{n}", parent, (), reply), (n,), sample)
        for n, parent in enumerate(parents)
    ]


def call(parent: Node | None = None, *, taped: bool = True) -> Node:
    return Node(parent, (), (), (), taped=taped)


ASKED = AgentRequest(({"role": "user", "content": "hi"},))


def test_a_retry_repeats_the_calls_before_its_pivot_in_any_order_and_samples_from_there() -> None:
    tape = RetryPlayer(calls := recorded(-1, -1, 1, 2), 2)
    with pytest.raises(ReplayDiverged, match="before it made the recorded call 0"):
        tape.check_met()
    for number in (1, 0):
        assert tape.take(f"h{number}", ASKED, call()) is calls[number]
    assert tape.pivot_node is None
    assert tape.take("h2", ASKED, pivot := call()) is None and tape.pivot_node is pivot
    tape.check_met()
    assert tape.take("h3", ASKED, call()) is None  # the pivot comes before it


def test_a_retry_leaves_its_tape_only_after_a_new_reply_or_its_pivot() -> None:
    tape = RetryPlayer(recorded(-1, 0), 1)
    assert tape.take("new", ASKED, call(call(taped=False))) is None
    with pytest.raises(ReplayDiverged, match="call 0 differs from the recorded one"):
        tape.take("new", ASKED, call())
    for number in (0, 1):
        tape.take(f"h{number}", ASKED, call())
    assert tape.take("new", ASKED, call()) is None
    assert tape.take("h0", ASKED, call()) is None  # each recorded call is taken once


def test_a_continued_attempt_gets_a_reply_only_after_the_same_calls() -> None:
    tape = ContinuingPlayer(calls := recorded(-1, 0, 0))
    first, other = call(), call()
    assert tape.take("h1", ASKED, call(other)) is None  # what it follows was not repeated
    assert tape.take("h0", ASKED, first) is calls[0]
    assert tape.take("h1", ASKED, call(other)) is None
    assert tape.take("h2", ASKED, call(first)) is calls[2]
    assert tape.take("h1", ASKED, call(first)) is calls[1]
    assert tape.take("h0", ASKED, call()) is None and tape.take("new", ASKED, call()) is None


def test_an_untrained_reply_without_tokens_is_repeated_whatever_it_follows() -> None:
    (kept,) = recorded(-1)
    tape = ContinuingPlayer([dataclasses.replace(kept, sample=None)] * 2)
    (untrained := call(call())).untrained = "asked"
    assert tape.take("h0", ASKED, call()) is None
    assert tape.take("h0", ASKED, untrained) is not None
