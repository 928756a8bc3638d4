"""A stand-in that speaks as an OpenEnv server does, and may misbehave."""

import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

WORD = {
    "properties": {"word": {"type": "string", "description": "what you say"}, "metadata": {}},
    "required": ["word"],
}
SEEN = {"properties": {"text": {"type": "string"}, "left": {"type": "integer"}}}
TOOL = {"name": "say", "input_schema": {"properties": {"word": {"type": "string"}}}}


class StandIn:
    """Answers as an OpenEnv server does. Its actions have the schema `action`. `pages`: what it
    shows over HTTP, by path; a number is an error. `say`: what a message gets in place of its
    answer, by the message's word or kind. `hang_up`: whether it closes after an answer.
    `twice`: whether it answers each message twice."""

    def __init__(self, action: dict[str, Any]) -> None:
        schemas = {"action": action, "observation": SEEN, "state": {}}
        self.pages: dict[str, Any] = {"/schema": schemas}
        self.say = dict[str, str]()
        self.asked, self.hang_up, self.silent = list[dict[str, Any]](), False, threading.Event()
        self.most, self.open, self.twice = 100, 0, False

    def http(self, connection: Any, request: Any) -> Any:
        if request.path == "/ws" and "/ws" not in self.pages:
            return None
        shown = self.pages.get(request.path, HTTPStatus.NOT_FOUND)
        if isinstance(shown, int):
            return connection.respond(HTTPStatus(shown), "")
        return connection.respond(
            HTTPStatus.OK, shown if isinstance(shown, str) else json.dumps(shown)
        )

    def session(self, connection: Any) -> None:
        self.open += 1
        try:
            if self.open > self.most:
                full = {"message": "full", "code": "CAPACITY_REACHED", "max_sessions": self.most}
                connection.send(json.dumps({"type": "error", "data": full}))
                return
            for text in connection:
                message = json.loads(text)
                self.asked.append(message)
                if message["type"] == "close":
                    return
                connection.send(self.reply(message))
                if self.twice:
                    connection.send(self.reply(message))
                if self.hang_up:
                    return
        finally:
            self.open -= 1

    def reply(self, message: dict[str, Any]) -> str:
        kind, data = message["type"], message.get("data", {})
        for said in (kind, str(data.get("word"))):
            if said in self.say:
                return self.say[said]
        kind, data = self.answer(kind, data)
        return json.dumps({"type": kind, "data": data})

    def answer(self, kind: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if kind == "state":
            return "state", {"step_count": 1, "secret": "red", "board": [1, 2]}
        if data.get("type") == "list_tools":
            return "observation", {"observation": {"tools": [TOOL]}, "reward": None, "done": False}
        if data.get("broken"):
            return "error", {"message": "it is broken", "code": "EXECUTION_ERROR"}
        if kind == "reset":
            first = {"text": "Say red.", "metadata": {"n": 1}}
            return "observation", {"observation": first, "reward": None, "done": False}
        if data.get("word") == "silence":
            self.silent.wait(60)
        said = data.get("word") or data.get("arguments", {}).get("word")
        if said == "crash":
            return "error", {"message": "it is broken", "code": "EXECUTION_ERROR"}
        if said is None:
            wrong = [{"loc": ["word"], "msg": "Field required"}]
            refused = {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": wrong}
            return "error", refused
        right = said == "red"
        seen = {"text": "yes", "left": 2} if right else {"text": "no"}
        return "observation", {"observation": seen, "reward": right, "done": right}


@pytest.fixture
def serve() -> Iterator[Any]:
    """Starts stand-ins. Returns each with the name of its environment."""
    reason = "pip install 'r3l[openenv]'"
    server_of = pytest.importorskip("websockets.sync.server", reason=reason)
    servers = []

    def start(action: dict[str, Any] = WORD) -> tuple[StandIn, str]:
        made = StandIn(action)
        server = server_of.serve(made.session, "127.0.0.1", 0, process_request=made.http)
        servers.append((made, server))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return made, f"openenv:http://127.0.0.1:{server.socket.getsockname()[1]}"

    yield start
    for made, server in servers:
        made.silent.set()
        server.shutdown()
