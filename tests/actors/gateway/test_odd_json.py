"""JSON inside texts of a request, and values nested deeply, get an answer or a named refusal."""

import json
from typing import Any

import httpx
import pytest

from r3l.rollout.agent_chat import PROBE_TOOLS
from r3l.rollout.chat import ChatFormat
from tests.actors.gateway.test_session import Vocabulary
from tests.actors.gateway.test_web_app import with_server
from tests.r3l.fakes import ScriptedPolicy
from tests.r3l.rollout.test_agent_chat import QWEN

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HI = {"role": "user", "content": "hi"}
Body = dict[str, Any]


def deep(levels: int) -> Any:
    value: Any = {"type": "string"}
    for _ in range(levels):
        value = {"type": "object", "properties": {"a": value}}
    return value


def called(arguments: str, path: str = CHAT) -> tuple[str, Body]:
    if path == RESPONSES:
        made = {"type": "function_call", "call_id": "a", "name": "add_one", "arguments": arguments}
        result = {"type": "function_call_output", "call_id": "a", "output": "b"}
        return path, {"input": [HI, made, result]}
    function = {"name": "add_one", "arguments": arguments}
    call: Any = {"id": "a", "type": "function", "function": function}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    answered = {"role": "tool", "tool_call_id": "a", "content": "b"}
    return path, {"messages": [HI, said, answered], "tools": [*PROBE_TOOLS]}


def tool(schema: Any) -> tuple[str, Body]:
    function = {"name": "x", "parameters": schema}
    return CHAT, {"messages": [HI], "tools": [{"type": "function", "function": function}]}


def used(given: Any) -> tuple[str, Body]:
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {"a": given}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    said = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    return MESSAGES, {"max_tokens": 5, "messages": [HI, *said], "tools": tools}


NESTED = {
    **{f"a tool's schema, {n}": tool(deep(n)) for n in (50, 100, 200, 300, 400)},
    **{f"arguments, {n}": called('{"at":' + "[" * n + "]" * n + "}")
       for n in (50, 300, 480, 900, 3000, 20_000)},
    **{f"responses, {n}": called('{"at":' + "[" * n + "]" * n + "}", RESPONSES)
       for n in (300, 480, 900)},
    **{f"a tool's use, {n}": used(deep(n)) for n in (20, 300)},
    **{f"a shape, {n}": (CHAT, {"messages": [HI], "guided_json": deep(n)}) for n in (50, 300, 450)},
    "a shape in a text": (CHAT, {"messages": [HI], "guided_json": json.dumps(deep(400))}),
    "a shape with tools": (CHAT, {"messages": [HI], "tools": [*PROBE_TOOLS],
                                  "guided_json": deep(300)}),
}  # fmt: skip
HALF = {
    f"{path} {text}": called(text, path)
    for path in (CHAT, RESPONSES)
    for text in ('{"at": "\\ud800"}', '{"\\udfff": 1}', '{"a": [{"b\\ud800": 1}]}', "[]", '"x"')
}
SHAPES = {
    f"{path} {name} {text}": (path, body | {name: {"json": text} if "_out" in name else text})
    for path, body in (
        (CHAT, {"messages": [HI]}),
        (RESPONSES, {"input": "hi"}),
        (MESSAGES, {"messages": [HI], "max_tokens": 5}),
    )
    for name in ("guided_json", "structured_outputs")
    for text in ('{"enum": ["\\ud800"]}', '{"properties": {"\\udfff": {}}}', '{"const": NaN}')
}


def answers(path: str, body: Body) -> httpx.Response:
    policy, got = ScriptedPolicy(lambda text: "yes"), []
    policy.chat = ChatFormat(Vocabulary(QWEN))

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        got.append(await client.post(path, content=json.dumps(body)))

    with_server(test, policy)
    return got[0]


@pytest.mark.parametrize("name", NESTED)
def test_a_value_nested_deeply_is_read_or_refused_by_name(name: str) -> None:
    answer = answers(*NESTED[name])
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert "nest" in answer.text or "values" in answer.text, answer.text


@pytest.mark.parametrize("name", HALF)
def test_arguments_with_half_a_surrogate_pair_are_read_as_text(name: str) -> None:
    answer = answers(*HALF[name])
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", SHAPES)
def test_a_schema_in_a_text_with_half_a_surrogate_pair_is_refused(name: str) -> None:
    answer = answers(*SHAPES[name])
    assert answer.status_code == 400 and "json: is a text" in answer.text
