"""OpenEnv servers: a stand-in that speaks their protocol, and one of the real package."""

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest

from envs import registry
from envs.testing import check_env
from r3l.errors import EnvironmentFailed, UserError

server_of = pytest.importorskip("websockets.sync.server", reason="pip install 'r3l[openenv]'")

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("R3L_OPENENV_PYTHON", ROOT / "build" / "agents" / "bin" / "python"))
WORD = {"properties": {"word": {"type": "string"}, "metadata": {}}, "required": ["word"]}
TOOL = {"name": "say", "inputSchema": {"properties": {"word": {"type": "string"}}}}


class StandIn:
    """Answers as an OpenEnv server does. Its actions have the schema `action`."""

    def __init__(self, action: dict[str, Any]) -> None:
        self.action, self.asked = action, list[dict[str, Any]]()
        self.hang_up, self.silent = False, threading.Event()

    def http(self, connection: Any, request: Any) -> Any:
        if request.path == "/schema":
            return connection.respond(HTTPStatus.OK, json.dumps({"action": self.action}))
        return None if request.path == "/ws" else connection.respond(HTTPStatus.NOT_FOUND, "")

    def session(self, connection: Any) -> None:
        for text in connection:
            message = json.loads(text)
            self.asked.append(message)
            kind, data = self.answer(message["type"], message["data"])
            connection.send(json.dumps({"type": kind, "data": data}))
            if self.hang_up:
                return

    def answer(self, kind: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if data.get("type") == "list_tools":
            return "observation", {"observation": {"tools": [TOOL]}, "reward": None}
        if data.get("broken"):
            return "error", {"message": "it is broken", "code": "EXECUTION_ERROR"}
        if kind == "reset":
            return "observation", {"observation": {"text": "Say red.", "left": []}, "done": False}
        if data.get("word") == "silence":
            self.silent.wait(60)
        said = data.get("word") or data.get("arguments", {}).get("word")
        if said == "crash":
            return "error", {"message": "it is broken", "code": "EXECUTION_ERROR"}
        if said is None:
            return "error", {"message": "Invalid message", "code": "VALIDATION_ERROR"}
        right = said == "red"
        seen = {"text": "yes", "left": 2} if right else {"text": "no"}
        return "observation", {"observation": seen, "reward": right, "done": right}


@pytest.fixture
def serve() -> Iterator[Any]:
    servers = []

    def start(action: dict[str, Any]) -> tuple[StandIn, str]:
        made = StandIn(action)
        server = server_of.serve(made.session, "127.0.0.1", 0, process_request=made.http)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return made, f"openenv:http://127.0.0.1:{server.socket.getsockname()[1]}"

    yield start
    for server in servers:
        server.shutdown()


def test_an_action_with_one_field_is_its_text(serve: Any) -> None:
    made, name = serve(WORD)
    env = registry.make(name, reset={"level": 2})
    assert env.spec.name == name and "word" in env.spec.system_prompt
    assert env.reset(seed=3) == ("Say red.", {})
    assert env.step("It is not blue.\n<action>no</action>") == ("no", 0.0, False, False, {})
    assert env.step("a\nb") == (env.step("a\nb")[0], 0.0, False, False, {})
    assert env.step("{}") == ("That is not understood: " + REFUSED, 0.0, False, False, {})
    assert env.step('{"word": "red"}') == ('{"text": "yes", "left": 2}', 1.0, True, False, {})
    env.close()
    env.close()
    assert made.asked[0] == {"type": "reset", "data": {"seed": 3, "level": 2}}
    assert made.asked[1] == {"type": "step", "data": {"word": "no"}}


def test_an_action_of_several_lines_is_sent_as_it_is(serve: Any) -> None:
    made, name = serve(WORD)
    env = registry.make(name)
    env.reset(seed=0)
    env.step("I loop.\n<action>\nfor n in x:\n    print(n)\n</action>")
    assert made.asked[-1]["data"] == {"word": "for n in x:\n    print(n)"}
    env.close()


REFUSED = '{"message": "Invalid message", "code": "VALIDATION_ERROR"}'


def test_tools_are_listed_and_called(serve: Any) -> None:
    made, name = serve({"title": "Action", "properties": {}})
    env = registry.make(name)
    assert '"name": "say"' in env.spec.system_prompt
    env.reset(seed=0)
    _, reward, done, *_ = env.step('{"tool_name": "say", "arguments": {"word": "red"}}')
    assert (reward, done) == (1.0, True)
    given = {"type": "call_tool", "tool_name": "say", "arguments": {"word": "red"}}
    assert made.asked[-1]["data"] == given
    assert "No action" in env.step("red")[0]
    env.close()


def test_a_number_is_sent_as_a_number(serve: Any) -> None:
    made, name = serve({"properties": {"n": {"type": "integer"}}, "required": ["n"]})
    env = registry.make(name)
    env.reset(seed=0)
    env.step("<action>7</action>")
    assert made.asked[-1]["data"] == {"n": 7}
    env.close()


def test_an_action_that_the_environment_raises_on_is_answered(serve: Any) -> None:
    env = registry.make(serve(WORD)[1])
    env.reset(seed=0)
    broken = ("it is broken", 0.0, False, False, {"fault": "openenv_error"})
    assert env.step("crash") == broken
    assert env.step("red")[1:3] == (1.0, True)
    env.close()


def test_a_reset_that_fails_and_a_silent_server_fail_the_attempt(serve: Any) -> None:
    made, name = serve(WORD)
    env = registry.make(name, timeout_s=2.0)
    with pytest.raises(EnvironmentFailed, match="reset: it is broken"):
        env.reset(seed=0, options={"broken": True})
    env.reset(seed=0)
    with pytest.raises(EnvironmentFailed, match=r"step: no answer .*timeout_s"):
        env.step("silence")
    made.silent.set()
    assert env.reset(seed=0)[0] == "Say red."  # not the answer that came late
    env.close()


def test_a_lost_session_is_replaced(serve: Any) -> None:
    made, name = serve(WORD)
    env = registry.make(name)
    made.hang_up = True
    env.reset(seed=0)
    made.hang_up = False
    time.sleep(0.1)
    assert env.reset(seed=0)[0] == "Say red."
    env.close()


def test_what_is_no_openenv_server_is_named(serve: Any) -> None:
    for url in ("http://127.0.0.1:1", "127.0.0.1:8000", serve(WORD)[1][8:] + "/else"):
        with pytest.raises(UserError, match=f"openenv:{url}: no OpenEnv server"):
            registry.make(f"openenv:{url}")


@pytest.mark.skipif(not PYTHON.exists(), reason="make test-agents runs this")
def test_a_server_of_the_real_package_passes_the_checks_of_an_environment() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = Path(__file__).with_name("openenv_server.py")
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([PYTHON, script, str(port)]) as server:
        try:
            deadline = time.monotonic() + 120
            while not _answers(url) and server.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
            env = registry.make(f"openenv:{url}", reset={"shout": True})
            word = env.reset(seed=1)[0].removeprefix("Say ").removesuffix(".")
            assert word.isupper() and env.step("<action>x</action>")[0] == "no"
            assert env.step(f"<action>{word}</action>") == ("yes", 1.0, True, False, {})
            assert env.step("crash")[0] == "it is broken"
            env.close()
            check_env(f"openenv:{url}", options={"sessions": 1})
        finally:
            server.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).is_success
    except httpx.HTTPError:
        return False
