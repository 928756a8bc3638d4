"""The policy of a running server, against a server made by hand."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from actors.http_policy import ServedPolicy
from envs.builtin.policy import builtin_policy
from r3l.errors import EngineDead, EngineFailed, EngineSick, UserError
from r3l.rollout.policy_interface import SampleParams

MODEL = builtin_policy()


class Handler(BaseHTTPRequestHandler):
    """Serves one model of 64 tokens; replies with tokens 5 and 2; refuses prompts of token 9, is
    sick at those of token 8."""

    asked: ClassVar[list] = []
    root = str(MODEL)

    def do_GET(self):
        self.reply(200, {"data": [{"id": "m", "root": self.root, "max_model_len": 64}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        if body["prompt"][0] == 9:
            self.reply(400, {"error": "too long"})
            return
        finish = "length" if body["max_tokens"] == 2 else "stop"
        choice = {"token_ids": [5, 2], "finish_reason": finish, "text": ""}
        last = 0.25 if body["prompt"][0] == 8 else -0.25
        choice["logprobs"] = {"token_logprobs": [-0.5, last]}
        self.reply(200, {"choices": [choice]})

    def reply(self, status, values):
        data = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.asked, Handler.root = [], str(MODEL)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield served
    served.shutdown()
    served.server_close()


def url(server):
    return f"http://127.0.0.1:{server.server_address[1]}"


def sample(server, prompt, params=None):
    async def once():
        policy = await ServedPolicy.connect(url(server) + "/v1", MODEL)
        try:
            return await policy.sample(prompt, params or SampleParams(8, temperature=0.0, seed=3))
        finally:
            await policy.aclose()

    return asyncio.run(once())


def test_tokens_are_sent_and_received_unchanged(server):
    params = SampleParams(8, 0.0, 3, json_schema={"type": "object"}, stop=("\n\n",))
    reply = sample(server, [7, 8], params)
    assert (reply.token_ids, reply.logprobs) == ((5, 2), (-0.5, -0.25))
    assert (reply.version, reply.finish_reason) == (0, "stop")
    (asked,) = Handler.asked
    assert asked["prompt"] == [7, 8] and asked["return_token_ids"]
    assert (asked["temperature"], asked["seed"], asked["stop"]) == (0.0, 3, ["\n\n"])
    assert asked["structured_outputs"] == {"json": {"type": "object"}}


def test_the_token_budget_is_limited_by_the_context(server):
    assert sample(server, [7] * 62).finish_reason == "overflow"
    assert sample(server, [7] * 64).token_ids == ()
    assert sample(server, [7], SampleParams(2)).finish_reason == "length"


def test_a_refused_request_fails_the_attempt_and_a_lost_server_ends_the_evaluation(server):
    with pytest.raises(EngineFailed) as caught:
        sample(server, [9])
    assert caught.value.cause == "engine_request" and "too long" in str(caught.value)

    async def lose():
        policy = await ServedPolicy.connect(url(server), MODEL)
        server.shutdown()
        server.server_close()
        with pytest.raises(EngineDead):
            for _ in range(3):
                await policy.sample([7], SampleParams(4))
        await policy.aclose()

    asyncio.run(lose())


def test_a_sick_server_is_not_believed(server):
    with pytest.raises(EngineSick, match=r"a log-probability is 0\.25, above 0") as caught:
        sample(server, [8])
    assert caught.value.cause == "logprobs_positive"


def test_a_server_of_another_model_is_refused_by_name(server):
    Handler.root = "/models/other"
    with pytest.raises(UserError, match=r"serves /models/other, not --model .*tiny"):
        sample(server, [7])


@pytest.mark.parametrize(
    "address", ["", "nonsense", "ftp://x", "http://[::", "http://127.0.0.1:99999"]
)
def test_an_invalid_server_address_is_refused_in_one_line(address):
    with pytest.raises(UserError, match="--engine"):
        asyncio.run(ServedPolicy.connect(address, MODEL))


def test_a_reply_without_tokens_fails_the_request_and_says_why(server, monkeypatch):
    def without_tokens(handler):
        handler.reply(200, {"choices": [{"text": "hello", "finish_reason": "stop"}]})

    monkeypatch.setattr(Handler, "do_POST", without_tokens)

    async def ask():
        policy = await ServedPolicy.connect(url(server), MODEL)
        try:
            await policy.sample([1, 2], SampleParams(8))
        finally:
            await policy.aclose()

    with pytest.raises(EngineFailed, match="return_token_ids"):
        asyncio.run(ask())
