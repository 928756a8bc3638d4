"""The server: keys, limits, streams, task and result."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from actors.gateway import web_app as module
from actors.gateway.web_app import WebApp
from r3l.errors import EngineDead, RequestRefused, UserError
from r3l.records import Task
from r3l.rollout.policy_interface import Sample, SampleParams
from tests.actors.gateway.test_address import certificate
from tests.actors.gateway.test_session import session_of
from tests.r3l.fakes import ScriptedPolicy

BODY = {"messages": [{"role": "user", "content": "hi"}]}
Test = Callable[[httpx.AsyncClient, Any], Coroutine[Any, Any, None]]


class Slow(ScriptedPolicy):
    """Answers after a moment."""

    async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
        await asyncio.sleep(0.3)
        return await super().sample(token_ids, params)


def with_server(test: Test, policy: ScriptedPolicy | None = None) -> None:
    async def run() -> None:
        session = session_of(policy or ScriptedPolicy(lambda text: "yes"))
        headers = {"Authorization": f"Bearer {session.key}"}
        async with (
            WebApp({session.key: session}).served("127.0.0.1", 0) as url,
            httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60) as client,
        ):
            await test(client, session)

    asyncio.run(run())


def test_a_call_is_answered_and_received() -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        reply = await client.post("/v1/chat/completions", json=BODY)
        assert reply.json()["choices"][0]["message"]["content"] == "yes"
        assert session.tree.nodes[0].seen
        models = (await client.get("/v1/models")).json()["data"]
        assert models[0]["max_model_len"] == 100_000

    with_server(test)


def test_the_kernel_holds_no_answer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made, create = [], socket.create_server
    monkeypatch.setattr(
        socket,
        "create_server",
        lambda *given, **more: made.append(create(*given, **more)) or made[0],
    )

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        assert made[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # connections inherit it

    with_server(test)


def test_an_answer_that_cannot_be_written_is_not_received(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Any:
        raise ValueError

    path = "/v1/chat/completions"
    monkeypatch.setitem(module.DIALECTS, path, replace(module.CHAT, write=broken))

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        assert (await client.post(path, json=BODY)).status_code == 500
        assert not session.tree.nodes[0].seen

    with_server(test)


@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        ({"Authorization": "Bearer nobody"}, b"{}", 401),
        ({"Authorization": "", "x-api-key": "nobody"}, b"{}", 401),
        ({}, b"{oops", 400),
        ({}, b"[]", 400),
        ({}, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        ({}, b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', 400),
        ({}, b'{"name\xed\xb0\x80": 1}', 400),
        ({}, '{"stop": "'.encode("utf-16") + b"\x00\xd8" + '"}'.encode("utf-16-le"), 400),
        ({}, b"[" * 900, 400),
        ({}, b" " * 2000, 413),
    ],
)
def test_foreign_keys_and_bad_bodies_are_refused(
    headers: dict[str, str], content: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BODY_LIMIT", 1000)

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        for path in ("/v1/chat/completions", "/r3l/result"):
            reply = await client.post(path, content=content, headers=headers)
            assert reply.status_code == status and "error" in reply.json()

    with_server(test)


@pytest.mark.parametrize(
    ("path", "anthropic"), [("/chat/completions", False), ("/v1/v1/messages", True)]
)
def test_a_path_that_is_not_offered_is_named_with_what_is(path: str, anthropic: bool) -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        reply = await client.post(path, json=BODY)
        assert reply.status_code == 404 and (reply.json().get("type") == "error") == anthropic
        said = reply.json()["error"]["message"]
        assert said.startswith(f"POST {path} is not offered") and "/v1/responses" in said
        assert "OPENAI_BASE_URL ends with /v1" in said
        assert (await client.get("/v1/chat/completions")).status_code == 405

    with_server(test)


def test_a_body_without_an_end_is_refused_while_others_are_answered() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * (1 << 20)

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        async def hostile() -> int | None:
            with suppress(httpx.TransportError):  # the server may close before the answer is read
                return (await client.post("/r3l/result", content=endless())).status_code
            return None

        attack = asyncio.create_task(hostile())
        assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200
        assert await attack in (413, None) and session.result is None

    with_server(test)


def test_ten_thousand_sessions_are_told_apart_and_leave_nothing_when_they_close() -> None:
    async def run() -> None:
        first = session_of(ScriptedPolicy(lambda text: "yes"))
        some = [replace(first, task=Task(str(n), "agent", n)) for n in range(10_000)]
        sessions = {session.key: session for session in some}
        before = len(asyncio.all_tasks())
        async with (
            WebApp(sessions).served("127.0.0.1", 0) as url,
            httpx.AsyncClient(base_url=url, trust_env=False) as client,
        ):
            for session in some[::500]:
                headers = {"Authorization": f"Bearer {session.key}"}
                for _ in range(2):
                    reply = await client.post("/v1/chat/completions", json=BODY, headers=headers)
                    assert reply.status_code == 200
                wrong = {"Authorization": f"Bearer {session.key[:-1]}"}
                reply = await client.post("/v1/chat/completions", json=BODY, headers=wrong)
                assert reply.status_code == 401
            while sessions:
                sessions.popitem()[1].close()
            reply = await client.post("/v1/chat/completions", json=BODY, headers=headers)
            assert reply.status_code == 401
        assert len(asyncio.all_tasks()) == before
        assert [len(session.tree.nodes) for session in some[::250]] == [2, 0] * 20

    asyncio.run(run())


def test_a_client_that_says_it_repeats_a_request_gets_the_same_answer() -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        path, again = "/v1/chat/completions", {"x-stainless-retry-count": "1"}
        first = await client.post(path, json=BODY)
        assert (await client.post(path, json=BODY, headers=again)).json() == first.json()
        assert len(session.policy.prompts) == 1
        for number, count in enumerate(("", "0", "-1", "no")):
            await client.post(path, json=BODY, headers={"x-stainless-retry-count": count})
            assert len(session.policy.prompts) == 2 + number

    with_server(test)


def test_a_call_whose_engine_is_replaced_may_be_made_again() -> None:
    class Dead(ScriptedPolicy):
        async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
            raise EngineDead("it is dead")

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        reply = await client.post("/v1/chat/completions", json=BODY)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")

    with_server(test, Dead(lambda text: ""))


def test_a_stream_is_kept_open_and_says_what_the_answer_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE_S", 0.1)

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        reply = await client.post("/v1/chat/completions", json=BODY | {"stream": True})
        lines = [line for line in reply.text.split("\n") if line]
        assert ": sampling" in lines and lines[-1] == "data: [DONE]"
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
        assert text == "yes" and session.tree.nodes[0].seen

    with_server(test, Slow(lambda text: "yes"))


def test_a_stream_that_cannot_be_sampled_is_an_error_with_its_status() -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        reply = await client.post("/v1/chat/completions", json=BODY | {"stream": True})
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "context_length_exceeded"

    with_server(test, ScriptedPolicy(lambda text: "yes", context_length=3))


def test_a_client_that_left_gets_the_same_answer_when_it_asks_again() -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(
                "/v1/chat/completions", json=BODY, timeout=httpx.Timeout(60, read=0.1)
            )
        while not session.tree.nodes[0].reply:
            await asyncio.sleep(0.01)
        for _ in range(20):  # in which the reply to who left is written
            await asyncio.sleep(0.01)
        assert not session.tree.nodes[0].seen
        reply = await client.post("/v1/chat/completions", json=BODY)
        assert reply.status_code == 200 and len(session.policy.prompts) == 1
        assert session.tree.nodes[0].seen

    with_server(test, Slow(lambda text: "yes"))


def test_a_client_that_left_a_stream_gets_the_same_answer_when_it_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE_S", 0.05)

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        path, body = "/v1/chat/completions", BODY | {"stream": True}
        async with client.stream("POST", path, json=body) as reply:
            async for line in reply.aiter_lines():
                assert line == ": sampling"
                break
        reply = await client.post(path, json=body)
        assert '"yes"' in reply.text and len(session.policy.prompts) == 1
        assert [node.seen for node in session.tree.nodes] == [True]

    with_server(test, Slow(lambda text: "yes"))


ASKED = {
    "/v1/chat/completions": BODY,
    "/v1/responses": {"input": "hi"},
    "/v1/messages": BODY | {"max_tokens": 9},
}


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("stream", [False, True])
def test_equal_requests_at_once_get_a_sample_each(path: str, stream: bool) -> None:
    said = iter(f"answer {n}." for n in range(5))

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        body = ASKED[path] | {"stream": stream}
        replies = await asyncio.gather(*(client.post(path, json=body) for _ in range(5)))
        for n in range(5):
            assert sum(f"answer {n}." in reply.text for reply in replies) == 1
        assert [node.seen for node in session.tree.nodes] == [True] * 5

    with_server(test, Slow(lambda text: next(said)))


def test_of_equal_requests_those_whose_clients_left_are_answered_to_those_that_repeat() -> None:
    said = iter(str(n) for n in range(9))

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        path, short = "/v1/chat/completions", httpx.Timeout(60, read=0.1)

        async def ask(number: int) -> str:
            try:
                reply = await client.post(path, json=BODY, timeout=short if number % 2 else 60)
            except httpx.ReadTimeout:
                again = {"x-stainless-retry-count": "1"} if number == 1 else {}
                reply = await client.post(path, json=BODY, headers=again)
            return str(reply.json()["choices"][0]["message"]["content"])

        answers = await asyncio.gather(*(ask(number) for number in range(5)))
        assert sorted(answers) == ["0", "1", "2", "3", "4"]
        assert len(session.policy.prompts) == 5
        assert all(node.seen for node in session.tree.nodes)

    with_server(test, Slow(lambda text: next(said)))


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/v1/chat/completions", "data: {"),
        ("/v1/responses", "event: error\ndata: {"),
        ("/v1/messages", "event: error\ndata: {"),
    ],
)
def test_a_stream_that_fails_after_its_head_ends_with_the_error_of_its_protocol(
    path: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE_S", 0.05)

    class Refusing(Slow):
        async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
            await super().sample(token_ids, params)
            raise RequestRefused("not this", cause="engine_request")

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        reply = await client.post(path, json=ASKED[path] | {"stream": True})
        *comments, last, rest = reply.text.split("\n\n")
        assert reply.status_code == 200 and set(comments) == {": sampling"} and not rest
        assert last.startswith(shown) and "not this" in last
        assert json.loads(last.partition("data: ")[2])["error"]["message"] == "not this"
        assert not session.tree.nodes[0].seen

    with_server(test, Refusing(lambda text: "yes"))


def test_the_task_is_read_and_the_result_posted_once() -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        assert (await client.get("/r3l/task")).json() == {}
        for status in (200, 400):
            reply = await client.post("/r3l/result", json={"reward": 1.0})
            assert reply.status_code == status
        assert session.result == {"reward": 1.0}
        assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 400

    with_server(test)


@pytest.mark.parametrize(
    ("authorization", "named", "status"),
    [
        ("Bearer KEY", "", 200),
        ("", "KEY", 200),
        ("Bearer of-another-tool", "KEY", 200),
        ("Bearer KEY", "of-another-tool", 200),
        ("Basic of-another-tool", "KEY", 200),
        ("of-another-tool", "KEY", 200),
        ("Bearer of-another-tool", "of-another-tool", 401),
        ("Bearer of-another-tool", "", 401),
    ],
)
def test_a_key_of_another_tool_beside_the_attempts_key_does_no_harm(
    authorization: str, named: str, status: int
) -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        headers = {"Authorization": authorization, "x-api-key": named}
        headers = {name: text.replace("KEY", session.key) for name, text in headers.items()}
        reply = await client.post("/v1/chat/completions", json=BODY, headers=headers)
        assert reply.status_code == status, reply.text

    with_server(test)


def test_an_attempt_is_played_over_https(tmp_path: Path) -> None:
    file = certificate(tmp_path)

    async def run() -> None:
        session = session_of(ScriptedPolicy(lambda text: "yes"))
        headers = {"Authorization": f"Bearer {session.key}"}
        trusted = ssl.create_default_context(cafile=str(file))
        async with (
            WebApp({session.key: session}).served("localhost", 0, str(file)) as url,
            httpx.AsyncClient(base_url=url, headers=headers, verify=trusted) as client,
        ):
            assert url.startswith("https://localhost:")
            reply = await client.post("/v1/chat/completions", json=BODY)
            assert reply.status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize("key", ["", "none"])
def test_another_key_opens_no_attempt(key: str) -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        for header in (
            {"Authorization": f"Bearer {key}".strip()},
            {"Authorization": "", "x-api-key": key},
        ):
            for path in ("/v1/chat/completions", "/r3l/result", f"/mcp/any/{key or 'none'}"):
                reply = await client.post(path, json=BODY, headers=header)
                assert reply.status_code == 401
            assert (await client.get("/r3l/task", headers=header)).status_code == 401
        assert session.result is None and not session.tree.nodes

    with_server(test)


def test_every_address_is_named_by_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")

    async def serve() -> str:
        async with WebApp({}).served("0.0.0.0", 0) as url:
            return url

    assert asyncio.run(serve()).startswith(f"http://{socket.gethostname()}:")


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def serve() -> None:
            async with WebApp({}).served("127.0.0.1", port):
                raise AssertionError

        with pytest.raises(UserError, match=f"actor.agent.port={port}"):
            asyncio.run(serve())
