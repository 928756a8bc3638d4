"""Requests for other models: passed on without the attempt's key, recorded, never trained."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from actors.agents.agent_attempt import AgentEnvironment
from actors.agents.tape_reader import continuing_player
from actors.dialects.chat_completions import Refused
from actors.dialects.dialects import CHAT
from actors.gateway import other_models
from actors.gateway.other_models import OtherModels
from actors.gateway.passed_calls import LONGEST_KEPT
from actors.gateway.session import MOST_CALLS
from actors.gateway.web_app import WebApp
from r3l.errors import UserError
from r3l.records import Trajectory
from r3l.run.config import load
from r3l.run.settings.actor import AgentConfig, ModelServer
from r3l.views.tape import read_tape
from tests.actors.gateway.test_session import session_of
from tests.r3l.fakes import ScriptedPolicy

LONG = "x" * (LONGEST_KEPT + 1)
MESSAGES = [{"role": "user", "content": "hi"}]


class Server:
    """Remembers the requests to the other model's server."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if b'"broken"' in request.content:
            raise httpx.ConnectError("refused")
        if json.loads(request.content).get("stream"):
            return httpx.Response(200, text="data: [DONE]\n\n", headers=EVENTS)
        if b"gpt-moved" in request.content:
            return httpx.Response(307, headers={"location": "http://elsewhere/"})
        if b"gpt-endless" in request.content:
            return httpx.Response(200, content=b"x" * 2000)
        if b'"long"' in request.content:
            return httpx.Response(200, text=LONG)
        return httpx.Response(429 if b"gpt-busy" in request.content else 200, json={"ok": True})


EVENTS = {"content-type": "text/event-stream"}


def asked(
    path: str, body: dict[str, Any], headers: dict[str, str], left: Trajectory | None = None
) -> tuple[Any, Server, Any]:
    """Sends a request through the gateway; returns the answer, the server and the session. `left`:
    the attempt as an earlier actor left it."""
    server = Server()

    async def run() -> tuple[Any, Server, Any]:
        session = session_of(ScriptedPolicy(lambda text: "yes"))
        session.tape = left and continuing_player(left)
        others = OtherModels(
            {
                "gpt-*": ModelServer(url="https://gpt.example/v1/", key="GPT_KEY"),
                "claude-*": ModelServer(url="https://claude.example/v1", key="GPT_KEY"),
                "broken": ModelServer(url="https://none.example"),
            }
        )
        others.client = httpx.AsyncClient(transport=httpx.MockTransport(server))
        key = {"Authorization": f"Bearer {session.key}", "x-api-key": session.key}
        app = WebApp({session.key: session}, others)
        async with (
            app.served("127.0.0.1", 0) as url,
            httpx.AsyncClient(
                base_url=url, headers=key | headers, trust_env=False, timeout=60
            ) as client,
        ):
            answer = await client.post(path, json={"messages": MESSAGES} | body)
            again = await client.post(path, json={"messages": MESSAGES, "model": "policy"})
            assert again.status_code in (200, 400)  # 400: no max_tokens for /v1/messages
        return answer, server, session

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "model", "url", "header"),
    [
        ("chat/completions", "gpt-5", "https://gpt.example/v1/chat/completions", "authorization"),
        ("messages", "claude-x", "https://claude.example/v1/messages", "x-api-key"),
    ],
)
def test_only_the_servers_own_key_is_sent(
    path: str, model: str, url: str, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPT_KEY", "theirs")
    given = {"cookie": "c", "anthropic-version": "2023-06-01", "x-stainless-lang": "python"}
    answer, server, session = asked(f"/v1/{path}", {"model": model}, given)
    assert answer.json() == {"ok": True}
    (sent,) = server.asked
    assert str(sent.url) == url and json.loads(sent.content)["messages"] == MESSAGES
    everything = str(sent.headers.raw) + str(sent.content)
    assert session.key not in everything and "stainless" not in everything
    assert sent.headers[header].endswith("theirs")
    assert sent.headers["anthropic-version"] == "2023-06-01" and "cookie" not in sent.headers


def test_a_passed_call_is_recorded_and_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPT_KEY", "theirs")
    answer, _, session = asked("/v1/chat/completions", {"model": "gpt-5", "stream": True}, {})
    assert answer.text == "data: [DONE]\n\n" and answer.headers["content-type"].startswith(
        "text/event-stream"
    )
    (call,) = session.passed.calls
    assert (call.model, call.trained, call.parent) == ("gpt-5", False, -1)
    assert call.reply["content"] == answer.text and '"gpt-5"' in call.messages[0]["content"]
    assert len(session.tree.nodes) == len(session.tree.tape()) == 1  # the policy's own


def test_a_continued_attempt_repeats_their_whole_answers_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPT_KEY", "theirs")

    def played_by(body: dict[str, Any]) -> tuple[Any, Server, Trajectory]:
        answer, server, session = asked("/v1/chat/completions", body, {}, left)
        attempt = AgentEnvironment(Mock(), Mock(settings=AgentConfig()))
        attempt.session, attempt.slot, attempt.retry = session, 0, None
        return answer, server, attempt._progress()

    left: Trajectory | None = None
    for body, again in (
        ({"model": "gpt-5", "stream": True}, 0),
        ({"model": "gpt-busy"}, 1),  # an error is no answer
        ({"model": "gpt-5", "messages": [{"role": "user", "content": LONG}]}, 0),
        ({"model": "gpt-5", "long": True}, 1),  # only a part of the answer is kept
    ):
        left = None
        first, _, left = played_by(body)
        second, server, left = played_by(body)
        assert len(server.asked) == again and second.content == first.content
        assert second.headers["content-type"] == first.headers["content-type"]
        assert [call.model for call in read_tape(left.extra.tape)] == ["", body["model"]]
        assert len(played_by(body | {"more": 1})[1].asked) == 1  # another request


def test_a_long_request_is_passed_whole_and_recorded_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPT_KEY", "theirs")
    long = {"model": "gpt-5", "messages": [{"role": "user", "content": "é" * LONGEST_KEPT}]}
    _, server, session = asked("/v1/chat/completions", long, {})
    assert json.loads(server.asked[0].content) == long
    (call,) = session.passed.calls
    assert len(call.messages[0]["content"]) <= LONGEST_KEPT


def test_a_request_without_a_model_is_for_the_policy() -> None:
    others = OtherModels({"*": ModelServer(url="https://x")})
    assert others.server_of({}) is others.server_of({"model": ""}) is None
    assert others.server_of({"model": "any"}) is others.servers["*"]


def test_a_setting_says_which_names_are_the_policy_and_which_of_them_are_trained() -> None:
    names: dict[str, Any] = {
        "gpt-4o-mini": "policy-untrained", "gpt-*": "policy", "judge": "https://x"
    }  # fmt: skip
    others = OtherModels(AgentConfig(models=names).models)
    expected = {"gpt-4o-mini": "policy-untrained", "gpt-4o": "policy", "": "policy",
                "policy": "policy", "qwen": "qwen"}  # fmt: skip
    for name, decided in expected.items():
        assert others.server_of({"model": name}) is None
        assert others.policy_of({"model": name}) == decided
    assert others.server_of({"model": "judge"}) is others.servers["judge"]
    with pytest.raises(UserError, match="gpt is not a URL; begin it with https"):
        AgentConfig(models={"gpt-*": "gpt"})  # type: ignore[dict-item]


def test_an_exact_name_comes_before_patterns_and_else_the_first_one_decides() -> None:
    names: dict[str, Any] = {
        "gpt-4.1*": "policy", "gpt-4.1-mini": "policy-untrained", "gpt-*": "policy-untrained"
    }  # fmt: skip
    others = OtherModels(AgentConfig(models=names).models)
    for name, decided in {"gpt-4.1-mini": "policy-untrained", "gpt-4.1-nano": "policy",
                          "gpt-5": "policy-untrained"}.items():  # fmt: skip
        assert others.policy_of({"model": name}) == decided


def test_replies_under_a_name_that_is_untrained_by_the_settings_are_not_trained() -> None:
    async def run() -> Any:
        session = session_of(ScriptedPolicy(lambda text: "yes"))
        models: dict[str, Any] = {"gpt-4o-mini": "policy-untrained"}
        app = WebApp({session.key: session}, OtherModels(AgentConfig(models=models).models))
        key = {"Authorization": f"Bearer {session.key}"}
        async with (
            app.served("127.0.0.1", 0) as url,
            httpx.AsyncClient(base_url=url, headers=key, trust_env=False, timeout=60) as client,
        ):
            for name in ("gpt-4o-mini", "gpt-4o", None, 5):
                body = {"messages": MESSAGES} | ({} if name is None else {"model": name})
                answer = await client.post("/v1/chat/completions", json=body)
                assert answer.status_code == (400 if name == 5 else 200)
                assert name in (None, 5) or answer.json()["model"] == name
        return session

    session = asyncio.run(run())
    assert [node.untrained for node in session.tree.nodes] == ["asked", "", ""]
    assert session.names == {"gpt-4o", "policy"} and session.metrics.agent["second_models"] == 1
    assert session.metrics.asked == {"policy-untrained": 1, "gpt-4o": 1, "policy": 1}


def test_calls_are_counted_when_they_begin() -> None:
    session = session_of(ScriptedPolicy(lambda text: "yes"))
    session.passed.begun = MOST_CALLS - 1
    others, server = OtherModels({}), ModelServer(url="https://x")

    async def run() -> None:
        arrived, go = asyncio.Event(), asyncio.Event()

        async def slow(request: httpx.Request) -> httpx.Response:
            arrived.set()
            await go.wait()
            return httpx.Response(200)

        def ask() -> Any:
            request = Mock(headers={}, url=httpx.URL("http://gateway/v1/chat/completions"))
            return others.answer(session, server, request, b'{"model": "m"}', CHAT)

        others.client = httpx.AsyncClient(transport=httpx.MockTransport(slow))
        first = asyncio.create_task(ask())
        await arrived.wait()
        with pytest.raises(Refused, match=f"at most {MOST_CALLS} calls"):
            await ask()
        go.set()
        await first

    asyncio.run(run())


def test_its_failures_are_the_agents_to_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPT_KEY", "theirs")
    assert asked("/v1/chat/completions", {"model": "gpt-busy"}, {})[0].status_code == 429
    answer, _, session = asked("/v1/chat/completions", {"model": "broken"}, {})
    assert answer.status_code == 502 and "none.example" in answer.json()["error"]["message"]
    assert not session.passed.calls


def test_redirects_and_endless_answers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPT_KEY", "theirs")
    monkeypatch.setattr(other_models, "LONGEST_ANSWER", 1000)
    for model, why in (("gpt-moved", "redirects to http://elsewhere/"), ("gpt-endless", "1000")):
        answer, server, session = asked("/v1/chat/completions", {"model": model}, {})
        assert answer.status_code == 502 and why in answer.json()["error"]["message"]
        assert len(server.asked) == 1 and not session.passed.calls


def test_a_missing_key_and_a_pattern_without_url_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GPT_KEY", raising=False)
    with pytest.raises(UserError, match=r"gpt-\*: .*GPT_KEY is not"):
        OtherModels({"gpt-*": ModelServer(url="https://x", key="GPT_KEY")})
    for value in ("{'gpt-*': }", "{'gpt-*': {key: A}}", "{'gpt-*': ftp://x}"):
        with pytest.raises(UserError, match=r"actor\.agent\.models"):
            load(None, [f"actor.agent.models={value}"])
    config = load(None, ["actor.agent.models={'gpt-*': 'https://x/v1'}"])
    assert config.actor.agent.models["gpt-*"].url == "https://x/v1"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "model.example"])
def test_only_a_server_on_another_machine_is_asked_through_the_proxy(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy of this test is the server itself, which sees how it was asked."""
    asked = list[str]()

    class Model(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"choices": []}')

        def log_message(self, *given: Any) -> None:
            """Silence."""

    async def ask(port: int) -> int:
        session = session_of(ScriptedPolicy(lambda text: "yes"))
        others = OtherModels({"judge": ModelServer(url=f"http://{host}:{port}/v1")})
        headers = {"Authorization": f"Bearer {session.key}"}
        async with (
            WebApp({session.key: session}, others).served("127.0.0.1", 0) as url,
            httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client,
        ):
            body = {"messages": MESSAGES, "model": "judge"}
            return (await client.post("/v1/chat/completions", json=body)).status_code

    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
        assert asyncio.run(ask(server.server_port)) == 200
        server.shutdown()
    assert asked == [
        "/v1/chat/completions"
        if host != "model.example"
        else f"http://{host}:{server.server_port}/v1/chat/completions"
    ]


def test_a_proxy_that_cannot_be_used_harms_only_who_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("all_proxy", "nonsense://127.0.0.1:9")
    OtherModels({})
    OtherModels({"judge": ModelServer(url="http://127.0.0.1:8000/v1")})
    with pytest.raises(UserError, match=r"actor\.agent\.models: the proxy that the environment"):
        OtherModels({"judge": ModelServer(url="https://model.example/v1")})
