"""No schema of an agent costs the real engine."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from actors.dialects.dialects import CHAT, request_of
from actors.gateway.grammars import grammar_of
from actors.gateway.parsers import reader_of
from actors.gateway.session import Session
from actors.gateway.web_app import WebApp
from r3l.errors import RequestRefused
from r3l.models.model_path import builtin_policy
from r3l.records import Task
from r3l.rollout.policy_interface import SampleParams
from r3l.run.process.memory import freeze_heap
from r3l.run.settings.actor import AgentConfig
from tests.actors.fakes import PROMPT, Served

pytestmark = pytest.mark.system

SCHEMAS: dict[str, Any] = {
    "itself": {"$ref": "#"},
    "a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},
                                                "b": {"$ref": "#/$defs/a"}}},
    "no type": {"type": []},
    "no value": {"enum": []},
    "a long list": {"type": "array", "items": {"type": "string"}, "minItems": 100_000},
    "many values": {"enum": [f"value {n} of the list" for n in range(20_000)]},
    "a long pattern": {"type": "string", "pattern": "^(a|aa)+b{1,5000}$"},
    "a long text": {"type": "string", "minLength": 200_000},
    "nested": {"type": "object", "properties": {"a": {"type": "object", "properties": {
        "b": {"$ref": "#/properties/a"}}, "required": ["b"]}}, "required": ["a"]},
}  # fmt: skip
FINE = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served(builtin_policy(), max_num_seqs=16, kv_cache_memory_bytes=10 << 20)
    yield served
    served.close()
    freeze_heap()  # without the engine


def test_the_engine_samples_calls_and_shapes_alone(served: Served) -> None:
    kind = {"type": "object", "properties": {"at": {"enum": ["door", "lamp"]}}, "required": ["at"]}
    function = {"name": "look", "parameters": kind, "strict": True}
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": kind}}
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hi"}],
        "parallel_tool_calls": False,
    }
    asked |= {"tools": [{"type": "function", "function": function}], "response_format": shape}
    own, request = reader_of(served.policy.chat, AgentConfig()), request_of(CHAT, asked)
    context, grammar = own.chat.open(request.messages, request.tools), grammar_of(own, request)

    async def scenario() -> list[Any]:
        params = [SampleParams(100, 2.0, seed=n, **grammar) for n in range(32)]
        return await asyncio.gather(*(served.policy.sample(context, each) for each in params))

    called = []
    for sample in served.run(scenario()):
        assert sample.finish_reason == "stop" and all(p <= 0 for p in sample.logprobs)
        reply = own.read(sample.token_ids, request.tools, "auto", shaped=True)
        made = reply.calls[0]["function"]["arguments"] if reply.calls else reply.text
        assert json.loads(made)["at"] in ("door", "lamp") and not reply.broken
        assert len(reply.calls) < 2
        called.append(bool(reply.calls))
    assert set(called) == {True, False}


def test_an_impossible_grammar_that_reaches_the_engine_fails_its_request_alone(
    served: Served,
) -> None:
    policy = served.policy

    async def test() -> None:
        params = SampleParams(8, json_schema={"$ref": "#"})
        plain = [policy.sample(PROMPT, SampleParams(8, seed=n)) for n in range(4)]
        (refused, *fine) = await asyncio.gather(
            policy.sample(PROMPT, params), *plain, return_exceptions=True
        )
        assert isinstance(refused, RequestRefused) and refused.cause == "grammar_failed"
        assert all(not isinstance(each, BaseException) for each in fine)

    served.run(test())
    assert not policy.dead and policy.metrics.requests_running == 0


def test_every_schema_gets_a_reply_or_a_refusal_that_names_it(served: Served) -> None:
    policy = served.policy
    session = Session(
        policy, reader_of(policy.chat, AgentConfig()), policy.metrics, Task("t7", "agent", 0),
        partial(SampleParams, 16, 1.0),
    )  # fmt: skip
    headers = {"Authorization": f"Bearer {session.key}"}

    def asked(name: str, schema: Any) -> dict[str, Any]:
        shape = {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
        return plain | {"response_format": shape}

    plain: dict[str, Any] = {"messages": [{"role": "user", "content": "station 0 has drum"}]}

    async def test() -> None:
        async with (
            WebApp({session.key: session}).served("127.0.0.1", 0) as url,
            httpx.AsyncClient(
                base_url=url, headers=headers, timeout=100, trust_env=False
            ) as client,
        ):
            post = partial(client.post, "/v1/chat/completions")
            for name, schema in SCHEMAS.items():
                answer, honest = await asyncio.gather(
                    post(json=asked(name, schema)), post(json=plain | {"user": name})
                )
                assert honest.status_code == 200, f"{name}: {honest.text} {answer.text}"
                if answer.status_code != 200:
                    said = answer.json()["error"]["message"]
                    assert answer.status_code == 400
                    assert f"the schema '{name}', asked for in task t7: " in said
            refused = policy.metrics.agent["grammar_refused"]
            assert refused >= 6
            assert (await post(json=asked("fine", FINE))).status_code == 200
            assert policy.metrics.agent["grammar_refused"] == refused

    served.run(test())
    assert session.problem is None and not policy.dead
    assert policy.metrics.requests_running == 0
