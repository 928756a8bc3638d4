"""The request to a server of agents."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from envs.agents import remote_agent

SCRIPT = Path(remote_agent.__file__)
GIVEN = {
    "R3L_TASK": '{"id": 1}',
    "R3L_URL": "http://r3l",
    "OPENAI_BASE_URL": "http://r3l/v1",
    "OPENAI_API_KEY": "key",
}


class Answering(BaseHTTPRequestHandler):
    """Remembers each request and gives the server's answer."""

    def do_POST(self) -> None:
        server: Any = self.server
        server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, text = server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        """Answers as the gateway, with the task."""
        known = self.headers["Authorization"] == "Bearer key" and self.path == "/r3l/task"
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(b'{"id": 2}')

    def log_message(self, *given: Any) -> None:
        """Silence."""


@pytest.fixture
def server() -> Iterator[Any]:
    with HTTPServer(("127.0.0.1", 0), Answering) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.mark.parametrize(
    ("answer", "code", "last"),
    [
        ((200, b'{\n "reward": 1.0}\n'), 0, '{  "reward": 1.0}'),
        ((200, b""), 0, ""),
        ((503, b"busy"), 1, "did not play the attempt: HTTP Error 503"),
    ],
)
def test_the_reply_is_printed_as_one_line(
    server: Any, answer: tuple[int, bytes], code: int, last: str
) -> None:
    server.answer = answer
    url = f"http://127.0.0.1:{server.server_port}/play"
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), url],
        env=os.environ | GIVEN,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == code and last in (ended.stdout if not code else ended.stderr)
    assert server.asked == {
        "task": {"id": 1},
        "url": "http://r3l",
        "base_url": "http://r3l/v1",
        "api_key": "key",
    }


def test_a_task_that_is_too_long_for_a_variable_is_asked_of_the_gateway(server: Any) -> None:
    server.answer = (200, b"1.0")
    gateway = f"http://127.0.0.1:{server.server_port}"
    own = {name: value for name, value in GIVEN.items() if name != "R3L_TASK"}
    subprocess.run(
        [sys.executable, str(SCRIPT), f"{gateway}/play"],
        env=os.environ | own | {"R3L_URL": gateway},
        check=True,
    )
    assert server.asked["task"] == {"id": 2}
