"""The tools of an agent's MCP servers: recorded, and repeated before a retry's step."""

import asyncio
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from actors.agents import mcp_relay
from actors.agents.mcp_relay import HttpServer, McpRelay, PipeServer
from actors.dialects.chat_completions import Refused
from actors.gateway import other_models
from actors.gateway.call_tree import Node
from actors.gateway.recorded_call import RetryPlayer
from r3l.errors import EnvironmentFailed
from r3l.records import SlotResult
from r3l.run.config import RunConfig, load
from r3l.views.tape import MCP, read_tape
from tests.actors.agents import test_tape_reader
from tests.actors.agents.test_tape_reader import answers, attempts, explored
from tests.actors.agents.test_world_state import program
from tests.actors.gateway.test_session import session_of
from tests.r3l.fakes import ScriptedPolicy

EXAMPLES = Path(__file__).parents[3] / "examples" / "agents"
SERVER = """
import json, sys
asked = open({log!r}, "a")
print("not a message", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "error" in message:
        continue
    print(message["method"], file=asked, flush=True)
    if message["method"] == "die":
        break
    if "id" not in message:
        continue
    print(json.dumps({{"id": 0, "method": "sampling"}}), flush=True)
    with open("made.txt", "a+") as made:
        if message["method"] == "tools/call":
            made.write(message["params"]["text"])
        made.seek(0)
        said = {{"id": message["id"], "jsonrpc": "2.0", "result": {{"made": made.read()}}}}
    print(json.dumps(said), flush=True)
"""
TOOLS = """
        if step == 0:
            tool("initialize", 7, version=1)
            tool("notifications/initialized")
        mood = task["mood"]
        text = str(step) + str(attempt) if mood == "new" and step == 1 else str(step)
        if mood == "dies" and step == 2:
            tool("die", 9)
        messages[-1]["content"] += " " + tool("tools/call", 8, text=text, _meta=attempt)["made"]
"""
TOOL = """
import urllib.request
def tool(method, id=None, **params):
    body = {{"jsonrpc": "2.0", "method": method, "params": params}} | ({{"id": id}} if id else {{}})
    headers = {{"Content-Type": "application/json"}}
    url = os.environ["R3L_MCP_MY_TOOLS"]
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body).encode(), headers)
    ) as answer:
        said = answer.read()
        assert answer.status == (200 if id else 202), answer.status
    reply = json.loads(said) if id else {{"id": None}}
    assert reply["id"] == id
    return reply.get("result")
"""
AGENT = test_tape_reader.AGENT.replace(
    "        reply = ask(messages)\n", TOOLS + "        reply = ask(messages)\n"
).replace("\n\ndef play", TOOL + "\n\ndef play")


def config_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mood: str = "", snapshot: str = "", url: str = ""
) -> RunConfig:
    monkeypatch.setattr(test_tape_reader, "AGENT", AGENT)
    config = test_tape_reader.config_of(folder, mood)
    command = program(folder, "server", SERVER.format(log=str(folder / "asked")))
    own = {"mcp": {"my-tools": url or command}, "snapshot": snapshot}
    env = config.env.model_copy(update={"options": config.env.options | own})
    return config.model_copy(update={"env": env})


def played(config: RunConfig, pivot: int = 2) -> tuple[list[SlotResult], Any, list[str]]:
    (results,), metrics, failures = explored(config, ScriptedPolicy(answers(pivot)))
    return results, metrics, failures


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().split()


HELLO = ["initialize", "notifications/initialized"]
CALL = "tools/call"


def test_tools_are_repeated_from_the_tape_and_the_folder_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call of the pivot, 2, has been shown the first three replies."""
    results, metrics, _ = played(config_of(tmp_path, monkeypatch, snapshot="workspace"))
    base, retry = attempts(results)
    assert asked(tmp_path) == HELLO + [CALL] * 4 + [*HELLO, CALL]
    assert metrics.agent["restored"] == 1 and retry.pivot == 2
    assert retry.observations[3] == "door 3 after right 0123"  # the world that was put back
    for attempt in (base, retry):
        calls = [call for call in read_tape(attempt.extra.tape) if call.dialect == MCP]
        assert [call.model for call in calls] == ["mcp:my-tools"] * 5  # the notification has none
        assert all(call.seconds > 0 for call in calls) == (attempt is base)
        assert [json.loads(c.messages[0]["content"])["method"] for c in calls][1:] == [CALL] * 4
        assert json.loads(calls[-1].reply["content"]) == {"result": {"made": "0123"}}


def test_unless_all_of_their_state_is_kept_the_tools_run_for_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, metrics, _ = played(config_of(tmp_path, monkeypatch))
    assert attempts(results)[1].observations[3] == "door 3 after right 0123"
    assert metrics.agent["restored"] == 1
    assert asked(tmp_path) == (HELLO + [CALL] * 4) * 2


def test_a_call_that_the_base_attempt_did_not_make_diverges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, metrics, (failure,) = played(config_of(tmp_path, monkeypatch, "new", "workspace"))
    assert results[1].cause == "replay_diverged" and metrics.agent["diverged"] == 1
    assert 'lacks tools/call {"text": "11"} ' in failure and "my-tools" in failure
    assert asked(tmp_path) == HELLO + [CALL] * 4


def test_a_server_that_ends_fails_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, _, (failure, *_) = played(config_of(tmp_path, monkeypatch, "dies"))
    assert results[0].cause == "mcp_failed" and "my-tools has ended" in failure


SEPARATED = "a\u2028b\u2029c\x85d"
"""Python takes these for ends of lines."""


class _Http(BaseHTTPRequestHandler):
    """An MCP server at a URL, whose replies are streams, with a session; /mcp redirects."""

    seen: list[tuple[str, str | None]]

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/"):
            self.seen.append((message["method"], self.headers["mcp-session-id"]))
        if not self.path.endswith("/"):
            self.send_response(307)
            self.send_header("location", self.path + "/")
            self.end_headers()
            return
        said = {"id": message.get("id"), "result": {"made": SEPARATED}}
        shown = json.dumps(said, ensure_ascii=False)
        events = f'event: message\r\ndata: {{"method": "log"}}\n\ndata: {shown}\n\n'
        self.send_response(200 if "id" in message else 202)
        self.send_header("mcp-session-id", "mine")
        self.end_headers()
        self.wfile.write(events.encode() * ("id" in message))

    def log_message(self, *given: Any) -> None:
        """Silence."""


def test_a_server_at_a_url_keeps_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Http.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Http) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/mcp/"
        results, *_ = played(config_of(tmp_path, monkeypatch, "", "workspace", url))
        asked = relay_of(url.rstrip("/")).answer("s", request_for(CALL), {})
        with pytest.raises(Refused, match=r"redirects to /mcp/; write that address"):
            asyncio.run(asked)
        server.shutdown()
    base, retry = attempts(results)
    assert retry.pivot == 2 and base.observations[1].endswith(SEPARATED)
    first = [("initialize", None), *((method, "mine") for method in HELLO[1:] + [CALL] * 4)]
    assert _Http.seen == [*first, *first[:2], (CALL, "mine")]


def relay_of(url: str = "http://127.0.0.1:9/", *, tape: bool = False) -> McpRelay:
    policy = ScriptedPolicy(lambda text: "yes")
    session = session_of(policy)
    if tape:
        session.tape = RetryPlayer([], 0)
        session.tape.stateful = True
        session.tape.pivot_node = Node(None, (), (), ())

    async def start(name: str) -> str:
        raise AssertionError

    relay = McpRelay(session, start)
    relay.urls = {"s": url}
    return relay


def request_for(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 3, "method": method, "params": params}


class _Live:
    """A server that answers every request."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, message: dict[str, Any], headers: Any) -> dict[str, Any]:
        self.sent.append(message["method"])
        return {"result": {}}

    async def close(self) -> None:
        """Nothing is open."""


def test_a_call_after_the_pivot_waits_until_the_world_is_put_back() -> None:
    async def test() -> None:
        relay, server = relay_of(tape=True), _Live()

        async def opened(*_: Any) -> Any:
            return server

        relay._opened = opened  # type: ignore[method-assign]
        asking = asyncio.create_task(relay.answer("s", request_for(CALL), {}))
        pong = await relay.answer("s", request_for("ping"), {})
        await asyncio.sleep(0.05)
        assert pong == {"jsonrpc": "2.0", "id": 3, "result": {}}
        assert not asking.done() and not server.sent
        relay.session.restored.set()
        assert await asking == {"jsonrpc": "2.0", "id": 3, "result": {}}
        assert server.sent == [CALL] and len(relay.session.passed.calls) == 1
        relay.session.restored.clear()
        asking = asyncio.create_task(relay.answer("s", request_for(CALL), {}))
        await asyncio.sleep(0)
        relay.session.end()
        with pytest.raises(Refused, match="has ended"):
            await asking

    asyncio.run(test())


def test_a_server_whose_start_is_repeated_in_vain_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed, close = list[HttpServer](), HttpServer.close

    async def noted(server: HttpServer) -> None:
        closed.append(server)
        await close(server)

    monkeypatch.setattr(HttpServer, "close", noted)

    async def test() -> None:
        relay = relay_of()
        relay.hello["s"] = request_for("initialize")
        with pytest.raises(Refused, match="does not answer"):
            await relay.answer("s", request_for(CALL), {})

    asyncio.run(test())
    assert [server.name for server in closed] == ["s"] and closed[0].client.is_closed


def test_an_answer_without_end_of_a_url_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_models, "LONGEST_ANSWER", 1000)

    async def test() -> None:
        relay, transport = relay_of(), httpx.MockTransport(
            lambda request: httpx.Response(200, content=b" " * 1001)
        )  # fmt: skip
        server = HttpServer("s", "http://127.0.0.1:9/")
        server.client = httpx.AsyncClient(transport=transport)
        relay.live["s"] = asyncio.create_task(asyncio.sleep(0, server))  # type: ignore[assignment]
        with pytest.raises(Refused, match="more than 1000 bytes"):
            await relay.answer("s", request_for(CALL), {})
        assert relay.session.problem is not None and relay.session.problem.cause == "mcp_failed"

    asyncio.run(test())


def test_notifications_are_calls_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_relay, "MOST_MCP_CALLS", 4)

    async def test() -> None:
        relay = relay_of()
        for _ in range(3):
            assert await relay.answer("s", {"method": "notifications/any"}, {}) is None
            await relay.answer("s", request_for("ping"), {})
        await relay.answer("s", {"method": "ping"}, {})
        with pytest.raises(Refused, match="at most 4 calls"):
            await relay.answer("s", {"method": "notifications/any"}, {})

    asyncio.run(test())


def test_what_a_server_does_not_read_waits_and_ends_with_the_attempt(tmp_path: Path) -> None:
    for name in ("stdin", "stdout"):
        os.mkfifo(tmp_path / name)

    async def test() -> None:
        relay = relay_of()
        server = await PipeServer.of("s", str(tmp_path))
        relay.live["s"] = asyncio.create_task(asyncio.sleep(0, server))  # type: ignore[assignment]
        long = {"method": "notifications/any", "params": {"text": "x" * (1 << 20)}}
        sent = [asyncio.create_task(relay.answer("s", long, {})) for _ in range(50)]
        while not any(each.done() for each in sent):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert server.pipes[0].get_write_buffer_size() < 3 << 20
        relay.session.end()
        answers = await asyncio.gather(*sent, return_exceptions=True)
        assert sum(isinstance(each, Refused) for each in answers) >= 48
        await relay.close()

    asyncio.run(test())


ODD = r"""
import json, sys
for line in sys.stdin:
    number = json.loads(line)["id"]
    print('{"id": %d, "result": {"nan": NaN, "half": "\\ud800"}}' % number, flush=True)
"""


def test_a_reply_that_is_hardly_json_goes_on_as_it_came_and_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, monkeypatch)
    (tmp_path / "odd.py").write_text(ODD)
    agent = tmp_path / "mine.py"
    agent.write_text(
        "import json, os, sys, urllib.request\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from stdlib_agent import ask\n"
        "def play(task):\n"
        "    body = json.dumps({'id': 1, 'method': 'm'}).encode()\n"
        "    asked = urllib.request.Request(os.environ['R3L_MCP_ODD'], body)\n"
        "    said = urllib.request.urlopen(asked).read().decode()\n"
        "    ask([{'role': 'user', 'content': said}])\n"
        "    return 1.0\n"
    )
    options = {
        "command": f"{agent}:play",
        "tasks": config.env.options["tasks"],
        "mcp": {"odd": f"{sys.executable} {tmp_path / 'odd.py'}"},
    }
    results, *_ = played(load(None, ["env=agent", f"env.options={json.dumps(options)}"]))
    base = results[0].trajectory
    assert base is not None, results[0].cause
    assert '{"nan": NaN, "half": "\\ud800"}' in base.observations[0]
    (call, *_) = [call for call in read_tape(base.extra.tape) if call.dialect == MCP]
    assert call.reply["content"] == '{"result": {"nan": NaN, "half": "\\ud800"}}'


CLOSED = """
import os, sys, time
sys.stdin.readline()
os.close(1)
time.sleep(600)
"""


def test_a_server_that_closes_its_output_and_lives_on_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, monkeypatch)
    (tmp_path / "closed.py").write_text(CLOSED)
    own = {"mcp": {"my-tools": f"{sys.executable} {tmp_path / 'closed.py'}"}, "snapshot": ""}
    env = config.env.model_copy(update={"options": config.env.options | own})
    results, _, (failure, *_) = played(config.model_copy(update={"env": env}))
    assert results[0].cause == "mcp_failed" and "my-tools has ended" in failure


def test_the_pipes_of_a_process_that_has_not_opened_them_are_closed(tmp_path: Path) -> None:
    for name in ("stdin", "stdout"):
        os.mkfifo(tmp_path / name)

    async def test() -> None:
        server = await PipeServer.of("s", str(tmp_path))
        await server.close()
        await asyncio.sleep(0.01)
        for name in ("stdin", "stdout"):
            with pytest.raises(OSError, match="No such device"):  # there is no reader
                os.open(tmp_path / name, os.O_WRONLY | os.O_NONBLOCK)

    asyncio.run(test())


def test_a_process_that_never_answers_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_relay, "START_S", 0.2)
    for name in ("stdin", "stdout"):
        os.mkfifo(tmp_path / name)

    async def test() -> None:
        server = await PipeServer.of("s", str(tmp_path))
        with pytest.raises(EnvironmentFailed, match="s has not answered within") as found:
            await server.send({"jsonrpc": "2.0", "id": 1, "method": "initialize"}, {})
        assert found.value.cause == "mcp_failed"
        await server.close()

    asyncio.run(test())


def test_a_cancelled_request_is_named_as_the_server_knows_it() -> None:
    class Pipe:
        def __init__(self) -> None:
            self.lines: list[dict[str, Any]] = []

        def write(self, line: bytes) -> None:
            self.lines.append(json.loads(line))

        def close(self) -> None:
            """Nothing is open."""

    def cancelled(number: Any) -> dict[str, Any]:
        return {"method": "notifications/cancelled", "params": {"requestId": number}}

    async def test() -> None:
        pipe: Any = Pipe()
        server = PipeServer("s", asyncio.StreamReader(), (pipe, pipe))
        asks = [
            asyncio.create_task(server.send({"id": each, "method": CALL}, {}))
            for each in ("a", 7, "b", "b")
        ]
        await asyncio.sleep(0)
        for number in (7, 1, "b"):  # 1 is no request's, b that of two clients
            await server.send(cancelled(number), {})
        assert pipe.lines[4:] == [cancelled(2)]
        await server.close()
        with pytest.raises(EnvironmentFailed):
            await asks[0]
        await asyncio.gather(*asks, return_exceptions=True)
        assert not server.waiting

    asyncio.run(test())


def test_the_real_client_calls_a_real_server(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    agent = tmp_path / "mine.py"
    agent.write_text(
        f"import os, sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from mcp import Client\nfrom stdlib_agent import ask\n"
        "async def play(task):\n"
        "    async with Client(os.environ['R3L_MCP_SUMS']) as server:\n"
        "        (tool,) = (await server.list_tools()).tools\n"
        "        made = await server.call_tool(tool.name, {'a': 6, 'b': 7})\n"
        "    ask([{'role': 'user', 'content': made.content[0].text}])\n"
        "    return {'reward': 1.0}\n"
    )
    (tmp_path / "tasks.jsonl").write_text('{"id": 1}')
    server = f"{sys.executable} {EXAMPLES / 'mcp_server.py'}"
    options = {"command": f"{agent}:play", "tasks": f"{tmp_path}/tasks.jsonl"}
    given = json.dumps(options | {"mcp": {"sums": server}})
    results, *_ = played(load(None, ["env=agent", f"env.options={given}"]))
    base = results[0].trajectory
    assert base is not None and base.observations[0] == "42"
    calls = [call for call in read_tape(base.extra.tape) if call.dialect == MCP]
    assert '"name": "multiply"' in calls[-1].messages[0]["content"]
