"""Requests with one meaning have one hash."""

import dataclasses

from actors.gateway.chat_completions import AgentRequest
from actors.gateway.recorded_call import hash_of_request
from r3l.rollout.agent_chat import tool_call


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
