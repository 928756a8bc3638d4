"""Long requests are refused before they are rendered, or read in a thread; names have a limit."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from actors.dialects.chat_completions import AgentRequest, Refused
from actors.gateway import request_limits as module
from actors.gateway import web_app
from actors.gateway.request_limits import characters, check_names, check_values, most_characters
from r3l.models.model_folder import read_tokenizer
from r3l.models.model_path import builtin_policy
from r3l.models.special_text import SpecialText
from r3l.rollout.agent_chat import TextTooLong, check_tokens, tool_call
from r3l.rollout.policy_interface import Sample, SampleParams
from tests.actors.gateway.test_web_app import BODY, with_server
from tests.r3l.fakes import CharTokenizer, ScriptedPolicy

PATH = "/v1/chat/completions"


def asked(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_a_text_that_cannot_fit_is_refused_before_it_is_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = ScriptedPolicy(lambda text: "yes", context_length=300)

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        encoded = []
        encode = CharTokenizer.encode

        def noted(self: Any, text: str, **more: Any) -> list[int]:
            encoded.append(len(text))
            return encode(self, text, **more)

        monkeypatch.setattr(CharTokenizer, "encode", noted)
        for text in ("x" * 1000, "x" * 40_000, "x" * 10_000_000):
            for _ in range(2):
                reply = await client.post(PATH, json=asked(text))
                assert reply.status_code == 400
                assert reply.json()["error"]["code"] == "context_length_exceeded"
        assert session.full and not session.tree.nodes  # what is refused is no call
        assert sum(encoded) <= 4 * module.LONG
        assert (await client.post(PATH, json=BODY)).status_code == 200

    with_server(test, policy)


def test_a_long_request_is_rendered_in_a_thread_and_its_tokens_are_the_same() -> None:
    policy = ScriptedPolicy(lambda text: "yes")
    threads = set()

    class Noting(CharTokenizer):
        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            if len(text) > 20_000:
                threads.add(threading.current_thread() is threading.main_thread())
            return [ord(letter) + 10 for letter in text]

    policy.chat.tokenizer = Noting()
    policy.chat.special = SpecialText(policy.chat.tokenizer)

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        first = asked("x" * 40_000)
        answers = await asyncio.gather(
            *(client.post(PATH, json=first | {"n": 1}) for _ in range(1))
        )
        assert [answer.status_code for answer in answers] == [200]
        assert threads == {False}
        (node,) = session.tree.nodes
        assert list(node.given) == session.tree.chat.chat.tokenizer.encode(
            session.tree.chat.chat.render(first["messages"], prompt=True)
        )
        said = {"role": "assistant", "content": "yes"}
        more = [*first["messages"], said, {"role": "user", "content": "y" * 40_000}]
        assert (await client.post(PATH, json={"messages": more})).status_code == 200
        assert session.tree.nodes[1].parent is node
        assert session.metrics.render_s > 0

    with_server(test, policy)


def test_a_template_that_refuses_a_long_request_is_named() -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        def refuse(*_: Any, **__: Any) -> str:
            raise ValueError("roles must alternate")

        session.reader.chat.chat.tokenizer.apply_chat_template = refuse
        reply = await client.post(PATH, json=asked("x" * 40_000))
        assert reply.status_code == 400 and "roles must alternate" in reply.text
        assert not session.tree.nodes and session.held == 0

    with_server(test)


def test_many_long_and_short_requests_at_once_are_each_a_call_of_their_own() -> None:
    async def test(client: httpx.AsyncClient, session: Any) -> None:
        texts = [f"{n}" * (40_000 if n % 3 else 5) for n in range(12)]
        answers = await asyncio.gather(*(client.post(PATH, json=asked(text)) for text in texts))
        assert {answer.status_code for answer in answers} == {200}
        seen = [node.messages[0]["content"] for node in session.tree.nodes]
        assert sorted(seen) == sorted(texts)
        assert [node.number for node in session.tree.nodes] == [*range(12)]
        assert session.held == session.open_requests == 0

    with_server(test)


@pytest.mark.parametrize("texts", ["x" * 40_000, "<|im_end|>" * 9000, " " * 200_000, "é ü " * 9000])
def test_the_rules_of_length_refuse_no_text_that_fits(texts: str) -> None:
    tokenizer: Any = read_tokenizer(builtin_policy(), "the built-in policy")
    for text in (texts, texts[: len(texts) // 3]):
        tokens = len(tokenizer.encode(text, add_special_tokens=False))
        check_tokens(tokenizer, text, tokens)
        assert len(text) <= most_characters(tokenizer, tokens)
        with pytest.raises(TextTooLong):
            check_tokens(tokenizer, text, tokens // 4)


def test_the_characters_of_all_texts_are_counted() -> None:
    assert characters({"a": ["bc", {"d": "efg"}, 5, None], "h": "i"}) == 6


def test_a_body_of_millions_of_values_is_refused_before_it_is_parsed() -> None:
    check_values(b"[" + b"1" * 4_000_000 + b"]")
    for text in (b"a1,", b'\\",', b"\\\\,", b"[{"):
        check_values(b'["' + text * 2_500_000 + b'"]')
        check_values(b'["' + text * 2_500_000)
    hidden = '["\u2222",' + "[]," * 2_000_000 + '"\u2222"]'
    with pytest.raises(Refused):
        check_values(hidden.encode("utf-16"))
    with pytest.raises(Refused, match="at most 2,000,000 values") as refused:
        check_values(b"[" + b"[]," * 2_000_000)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    ("path", "field"),
    [(PATH, "messages"), ("/v1/responses", "input"), ("/v1/messages", "messages")],
)
def test_wrong_messages_in_any_number_are_refused(path: str, field: str) -> None:
    strange: list[Any] = [
        [None] * 4096,
        ["a"] * 5000,
        [{}] * 3000,
        [{"role": "user", "content": [None] * 1000}] * 64,
        [{"type": "reasoning", "summary": ["a"] * 2000}],
        [BODY["messages"][0]] * 500 + [None] * 500,
    ]

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        client.timeout = httpx.Timeout(120)  # the first one imports the translator
        for messages in strange:
            reply = await client.post(path, json={field: messages, "max_tokens": 9})
            assert reply.status_code == 400 and len(reply.text) < 1000
        for name in ("include", "stop", "tools"):
            reply = await client.post(path, json={field: [BODY["messages"][0]], name: ["x"] * 5000})
            assert reply.status_code == 400 and f"{name}: has 5,000 items" in reply.text
        assert not session.tree.nodes

    with_server(test)


def named(length: int) -> list[AgentRequest]:
    name, user = "n" * length, {"role": "user", "content": "u"}
    call = tool_call("a", "{}", "i")
    return [
        AgentRequest((user | {"name": name},)),
        AgentRequest((user | {"tool_call_id": name},)),
        AgentRequest(({"role": "assistant", "tool_calls": [call | {"id": name}]},)),
        AgentRequest(({"role": "assistant", "tool_calls": [tool_call(name, "{}", "i")]},)),
        AgentRequest((user,), tools=({"type": "function", "function": {"name": name}},)),
        AgentRequest((user,), stop=(name + "s" * module.LONGEST_STOP,)),
        AgentRequest((user,), stop=("s",) * (length // 7)),
    ]


def test_names_ids_and_stop_texts_have_a_limit() -> None:
    for request in named(module.LONGEST_NAME + 1):
        with pytest.raises(Refused, match=r"characters|at most"):
            check_names(request)
    for request in named(60)[:5]:
        check_names(request)


def test_what_an_attempt_has_unanswered_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_app, "HELD_LIMIT", 5000)
    monkeypatch.setattr(web_app, "MOST_OPEN", 3)
    go = asyncio.Event()

    class Waiting(ScriptedPolicy):
        async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
            await go.wait()
            return await super().sample(token_ids, params)

    async def test(client: httpx.AsyncClient, session: Any) -> None:
        for size, most in ((2000, 2), (10, 3)):
            go.clear()
            asks = [
                asyncio.create_task(client.post(PATH, json=asked(f"{n}" * size)))
                for n in range(most)
            ]
            while session.open_requests < most or session.held < size * most:
                await asyncio.sleep(0.01)
            reply = await client.post(PATH, json=asked("z" * size))
            assert reply.status_code == 429 and "wait for an answer" in reply.text
            go.set()
            assert {(await ask).status_code for ask in asks} == {200}
            assert json.loads(reply.content)["error"]["code"] == "too_much_at_once"
        assert session.held == session.open_requests == 0

    with_server(test, Waiting(lambda text: "yes"))
