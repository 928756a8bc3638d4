"""Every field of a request is honoured, named once, or refused by its name."""

import logging
from typing import Any, get_type_hints

import httpx
import pytest
from anthropic.types import message_create_params as anthropic
from anthropic.types.beta import message_create_params as anthropic_beta
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from actors.dialects import fields
from actors.dialects.chat_completions import Refused, error
from actors.dialects.fields import FIELDS, PATHS, Fate, FieldLog, check, overlooked
from r3l.rollout.agent_chat import PROBE_TOOLS
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import SampleParams
from tests.actors.gateway.test_parsers import CALL
from tests.actors.gateway.test_session import Vocabulary
from tests.actors.gateway.test_web_app import with_server
from tests.r3l.fakes import ScriptedPolicy
from tests.r3l.rollout.test_agent_chat import QWEN, THINKING

HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": HI},
    "responses": {"input": "hi"},
    "messages": {"messages": HI, "max_tokens": 9},
}
KNOWN_TO = {
    "chat": [ChatCompletionRequest.model_fields, chat.CompletionCreateParamsStreaming],
    "responses": [ResponsesRequest.model_fields, responses.ResponseCreateParamsStreaming],
    "messages": [
        AnthropicMessagesRequest.model_fields,
        anthropic.MessageCreateParamsStreaming,
        anthropic_beta.MessageCreateParamsStreaming,
    ],
}
EACH = [(field, dialect) for field in FIELDS for dialect in field.where]
REFUSED = [(f.name, d) for f, d in EACH if f.fate is Fate.REFUSED]
SILENT = [(f.name, d) for f, d in EACH if f.fate in (Fate.OWN, Fate.IGNORED) and "." not in f.name]
OF_A_TYPE = [(f.name, d) for f, d in EACH if f.kind and "." not in f.name]


def with_field(dialect: str, name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.partition(".")
    return BODIES[dialect] | {outer: {inner: value} if inner else value}


@pytest.mark.parametrize("dialect", KNOWN_TO)
def test_the_table_has_every_field_that_servers_and_clients_know(dialect: str) -> None:
    known = {field.name for field in FIELDS if dialect in field.where}
    for source in KNOWN_TO[dialect]:
        names = source if isinstance(source, dict) else get_type_hints(source)
        assert set(names) - known == set()


def test_no_field_is_twice_in_the_table() -> None:
    names = [(field.name, dialect) for field, dialect in EACH]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("name", "dialect"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(name: str, dialect: str) -> None:
    with pytest.raises(Refused, match=name.replace(".", r"\.")) as refused:
        check(dialect, with_field(dialect, name, {"any": 1}))
    assert refused.value.status == 400 and ";" in str(refused.value)
    said = error(refused.value)["error"]
    assert (said["code"], said["param"]) == ("unsupported_parameter", name)
    check(dialect, with_field(dialect, name, None))


@pytest.mark.parametrize(("name", "dialect"), OF_A_TYPE)
def test_a_value_of_another_type_is_refused_by_name(name: str, dialect: str) -> None:
    with pytest.raises(Refused, match=f"{name} is 1.5; it must be"):
        check(dialect, with_field(dialect, name, 1.5))


@pytest.mark.parametrize(
    ("dialect", "name", "value"),
    [
        ("chat", "stream", "no"),
        ("messages", "stream", 1),
        ("chat", "n", 1.0),
        ("chat", "n", True),
        ("chat", "response_format", "json"),
        ("chat", "stop", 5),
        ("chat", "max_output_tokens", 5),
        ("responses", "max_tokens", 5),
        ("responses", "response_format", {"type": "json_object"}),
        ("messages", "stop", "END"),
        ("responses", "truncation", "auto"),
        ("responses", "context_management", [{"type": "compaction"}]),
        ("messages", "context_management", {"edits": [{"type": "clear_tool_uses_20250919"}]}),
        ("chat", "web_search_options", {}),
        ("chat", "modalities", ["text", "audio"]),
    ],
)
def test_a_wish_that_was_ignored_is_refused(dialect: str, name: str, value: Any) -> None:
    with pytest.raises(Refused, match=name):
        check(dialect, BODIES[dialect] | {name: value})


@pytest.mark.parametrize(
    ("dialect", "name", "value"),
    [
        ("chat", "n", 1),
        ("chat", "logprobs", False),
        ("chat", "modalities", ["text"]),
        ("chat", "parallel_tool_calls", True),
        ("responses", "truncation", "disabled"),
        ("responses", "background", False),
        ("responses", "n", 1),
        ("messages", "stream", False),
        ("messages", "context_management", {"edits": [{"type": "clear_thinking", "keep": "all"}]}),
    ],
)
def test_a_value_that_asks_for_nothing_is_taken(dialect: str, name: str, value: Any) -> None:
    check(dialect, BODIES[dialect] | {name: value})


@pytest.mark.parametrize(("name", "dialect"), SILENT)
def test_a_field_that_changes_no_reply_is_named_once(
    name: str, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    named = FieldLog()
    for _ in range(2):
        assert named.note(dialect, with_field(dialect, name, "x")) == 0
    (line,) = caplog.messages
    assert PATHS[dialect] in line and repr(name) in line


def test_unknown_fields_are_counted_each_time_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    named = FieldLog()
    for _ in range(2):
        assert named.note("chat", BODIES["chat"] | {"one": 1, "a\nline": 2, "none": None}) == 2
    assert len(caplog.messages) == 2 and not any("\n" in line for line in caplog.messages)
    with caplog.at_level(logging.WARNING):
        named.note("chat", {f"f{n}": 1 for n in range(1000)})
    assert len(caplog.messages) == fields.MOST_NAMED
    assert overlooked("responses", {"input": "hi", "text": {"verbosity": "low"}}) == {
        "text.verbosity": "this is r3l's own"
    }


def test_the_server_refuses_names_and_counts_in_each_dialect() -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        for dialect, body in BODIES.items():
            calls = len(session.tree.nodes)
            for name in ("guided_regex", "logit_bias", "stream"):
                refused = await client.post(PATHS[dialect], json=body | {name: "no"})
                assert refused.status_code == 400 and name in refused.text
            assert len(session.tree.nodes) == calls
            answer = await client.post(PATHS[dialect], json=body | {"odd": 1, "top_p": 0.1})
            assert answer.status_code == 200
        assert session.metrics.agent["unknown_fields"] == len(BODIES)

    with_server(test)


OFF: list[tuple[str, dict[str, Any]]] = [
    *((dialect, {"chat_template_kwargs": {"enable_thinking": False}}) for dialect in PATHS),
    ("chat", {"reasoning_effort": "none"}),
    ("chat", {"thinking": {"type": "disabled"}}),
    ("responses", {"reasoning": {"effort": "none"}}),
    ("messages", {"thinking": {"type": "disabled"}}),
]


@pytest.mark.parametrize(("dialect", "wish"), OFF)
def test_a_policy_that_shall_not_reason_reads_so_in_each_turn(
    dialect: str, wish: dict[str, Any]
) -> None:
    policy = ScriptedPolicy(lambda text: "yes")
    policy.chat = ChatFormat(Vocabulary(THINKING), earlier_reasoning="keep")

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        said = [*HI, {"role": "assistant", "content": "yes"}, *HI]
        key = "input" if dialect == "responses" else "messages"
        for more in ({}, {key: said}):
            answer = await client.post(PATHS[dialect], json=BODIES[dialect] | wish | more)
            assert answer.status_code == 200
            assert policy.prompts[-1].endswith("</think>\n\n")
            await client.post(PATHS[dialect], json=BODIES[dialect] | more)
            assert policy.prompts[-1].endswith("assistant\n")
        first, free, second, other = session.tree.nodes
        assert (second.parent, other.parent) == (first, free)

    with_server(test, policy)


def test_an_argument_that_the_template_does_not_read_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        for dialect, wish in OFF:
            body = BODIES[dialect] | wish
            assert (await client.post(PATHS[dialect], json=body)).status_code == 200

    with_server(test)
    for path in PATHS.values():
        assert any(path in line and "enable_thinking" in line for line in caplog.messages)


@pytest.mark.parametrize("dialect", PATHS)
def test_one_call_is_answered_if_calls_may_not_be_parallel(dialect: str) -> None:
    policy = ScriptedPolicy(lambda text: f"{CALL}\n{CALL}")
    policy.chat = ChatFormat(Vocabulary(QWEN))
    tool = PROBE_TOOLS[0]["function"]
    wish: dict[str, Any] = {"parallel_tool_calls": False, "tools": [PROBE_TOOLS[0]]}
    if dialect == "responses":
        wish["tools"] = [{"type": "function"} | tool]
    if dialect == "messages":
        wish = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
        wish["tools"] = [{"name": "add_one", "input_schema": tool["parameters"]}]

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        session.params = lambda step: SampleParams(500)
        more = {} if dialect == "responses" else {"max_tokens": 500}
        answer = await client.post(PATHS[dialect], json=BODIES[dialect] | wish | more)
        assert answer.status_code == 200 and answer.text.count('"add_one"') == (
            2 if dialect == "responses" else 1  # whose answer repeats the request's tools
        )
        (node,) = session.tree.nodes
        assert policy.chat.tokenizer.decode(node.sample.token_ids) == CALL

    with_server(test, policy)


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("prefix", ["", "Sure: "])
def test_a_reply_that_the_agent_has_begun_is_refused(dialect: str, prefix: str) -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        asked = [*HI, {"role": "assistant", "content": f"{prefix}yes"}]
        key = "input" if dialect == "responses" else "messages"
        refused = await client.post(PATHS[dialect], json=BODIES[dialect] | {key: asked})
        assert refused.status_code == 400 and "has begun" in refused.text
        assert not session.tree.nodes

    with_server(test)


def test_a_reply_that_the_policy_finished_may_come_last_and_so_may_a_participants() -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        await client.post(PATHS["chat"], json=BODIES["chat"])
        for said in ({"content": "yes"}, {"content": "so", "name": "writer"}):
            asked = [{"role": "system", "content": "s"}, *HI, {"role": "assistant"} | said]
            answer = await client.post(PATHS["chat"], json={"messages": asked})
            assert answer.status_code == 200

    with_server(test)
