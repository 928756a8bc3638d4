"""The request to a server of agents."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from envs.agents.remote_agent import play

GIVEN = {"R3L_URL": "http://r3l", "OPENAI_BASE_URL": "http://r3l/v1", "OPENAI_API_KEY": "key"}


class Answering(BaseHTTPRequestHandler):
    """Remembers each request and gives the server's answer."""

    def do_POST(self) -> None:
        server: Any = self.server
        server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, text = server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *given: Any) -> None:
        """Silence."""


@pytest.fixture
def server() -> Iterator[Any]:
    with HTTPServer(("127.0.0.1", 0), Answering) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (b'{\n "reward": 1.0}\n', {"reward": 1.0}),
        (b"", ""),
        (b"what", "what"),
        (b"[" * 9999, "[" * 9999),
    ],
)
def test_the_reply_is_the_result(
    server: Any, answer: bytes, result: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = 200, answer
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)
    assert play({"id": 1}, f"http://127.0.0.1:{server.server_port}/play") == result
    assert server.asked == {
        "task": {"id": 1},
        "url": "http://r3l",
        "base_url": "http://r3l/v1",
        "api_key": "key",
    }


def test_a_server_that_refuses_ends_the_process_with_its_status(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = 503, b"busy"
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="did not play the attempt: HTTP Error 503"):
        play({"id": 1}, f"http://127.0.0.1:{server.server_port}/play")
