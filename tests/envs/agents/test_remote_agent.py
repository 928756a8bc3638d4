"""The request to a server of agents."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from envs.agents import remote_agent
from envs.agents.agent import Agent
from envs.agents.agent_runner import MAIN
from envs.agents.remote_agent import play
from r3l.errors import UserError
from tests.buffer.fakes import until

GIVEN = {"R3L_URL": "http://r3l", "OPENAI_BASE_URL": "http://r3l/v1", "OPENAI_API_KEY": "key"}


class Answering(BaseHTTPRequestHandler):
    """Remembers each request and gives the server's answer."""

    def do_POST(self) -> None:
        server: Any = self.server
        server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, text = server.answer
        self.send_response(status)
        for name, value in getattr(server, "more", {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *given: Any) -> None:
        """Silence."""


def address(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_port}/play"


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
    assert play({"id": 1}, address(server)) == result
    assert server.asked == {
        "task": {"id": 1},
        "url": "http://r3l",
        "base_url": "http://r3l/v1",
        "api_key": "key",
    }


def test_a_long_task_reaches_the_server(server: Any, tmp_path: Path) -> None:
    server.answer, tasks = (200, b"1.0"), tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a", "split": "train"}\n')
    env, task = Agent(command=address(server), tasks=str(tasks)), {"text": "x" * (1 << 20)}
    env.prepare(task, [])
    env.start(GIVEN)
    until(lambda: env.processes[MAIN].poll() is not None)
    assert server.asked["task"] == task and env.stop(MAIN).exit == 0
    env.close()


def test_a_server_cannot_keep_the_state_of_an_attempt(server: Any, tmp_path: Path) -> None:
    (tasks := tmp_path / "tasks.jsonl").write_text('{"id": 1}\n')
    given = {"command": "true", "tasks": str(tasks), "snapshot": address(server)}
    with pytest.raises(UserError, match=r"snapshot .* is not a command"):
        Agent(**given, restore=address(server))


def test_a_server_that_refuses_ends_the_process_with_its_status(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = 503, b"busy"
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=r"did not play .*503"):
        play({"id": 1}, address(server))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_names_its_address(
    server: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer, server.more = (status, b""), {"Location": "http://127.0.0.1:9/there"}
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=r"redirects to http://127.0.0.1:9/there"):
        play({"id": 1}, address(server))


def test_a_reply_without_end_is_not_kept(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_agent, "LONGEST", 1000)
    server.answer = 200, b"1" * 1001
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="more than 1000 bytes"):
        play({"id": 1}, address(server))
