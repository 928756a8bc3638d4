"""Relays an agent's calls to its MCP servers, and records them on the tape.

    POST /mcp/NAME/KEY ─► before the step of a retry with its state ─► the recorded reply
                    └───► otherwise the server: a process next to the agent, or a URL

A server is started at the first call that the tape does not answer, so in a retry it finds the
world that was put back. If the tape answered the agent's `initialize`, the relay sends it first.
What a server asks of the client is refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, BinaryIO, Protocol

import httpx

from actors.gateway.chat_completions import Refused, bad
from actors.gateway.other_models import LONGEST_KEPT
from actors.gateway.session import Session
from actors.gateway.tape_player import digest_of_passed, diverged
from r3l.errors import EnvironmentFailed
from r3l.views.tape import MCP, WHOLE, TapedCall

MOST_CALLS = 4096
START_S = 30.0
LONGEST_LINE = 32 << 20
FORWARDED = ("mcp-protocol-version", "mcp-method", "mcp-name")
MCP_SESSION = "mcp-session-id"
LINE_END = re.compile(r"\r\n|\r|\n")
"""Of a stream; JSON may hold what else Python takes for the end of a line."""
Message = dict[str, Any]
Start = Callable[[str], Awaitable[str]]
"""Starts the process of a server; returns the folder with its pipes."""


class Server(Protocol):
    async def send(self, message: Message, headers: Mapping[str, str]) -> Message:
        """Returns the reply to a request, {} for a notification. Raises EnvironmentFailed."""

    async def close(self) -> None: ...


class McpRelay:
    """The MCP servers of one attempt, by name. `urls`: the address of each server that already
    runs; a server with an empty one is started here."""

    def __init__(self, session: Session, urls: Mapping[str, str], start: Start) -> None:
        self.session, self.urls, self.start = session, urls, start
        self.live: dict[str, asyncio.Task[Server]] = {}
        self.hello: dict[str, Message] = {}

    async def answer(
        self, name: str, message: Message, headers: Mapping[str, str]
    ) -> Message | None:
        """Answers a message of the agent; None for a notification. Raises Refused."""
        if name not in self.urls:
            raise Refused(404, "no_such_server", f"env.options.mcp names no server {name}")
        session, method = self.session, str(message.get("method", ""))
        if session.over or len(session.others) >= MOST_CALLS:
            raise Refused(400, "attempt_is_over", "this attempt has ended, or has too many calls")
        if "id" not in message:
            if name in self.live:
                await self._asked(name, message, headers)
            return None
        given = message.get("params") or {}
        if not method or not isinstance(given, dict):
            raise bad("a message to an MCP server must have a method, and params by name")
        if method == "ping":  # at times of its own, which a retry does not repeat
            return {"jsonrpc": "2.0", "id": message["id"], "result": {}}
        if method == "initialize":
            self.hello[name] = message
        params = {k: v for k, v in given.items() if k != "_meta"}
        digest = digest_of_passed([MCP, name, method, params], session.ignore)
        tape = session.tape
        if tape and tape.stateful and tape.pivot_node is None:
            call = tape.take_passed(digest)
            if call is None:
                shown = json.dumps(params)
                session.fail(diverged(f"{method} {shown:.200} of MCP server {name} is new", 0))
                raise Refused(400, "replay_diverged", "the base attempt made no such call")
            reply = dict(json.loads(call.reply["content"]))
        else:
            while tape and tape.stateful and not session.restored:
                if session.over:
                    raise Refused(400, "attempt_is_over", "this attempt has ended")
                await asyncio.sleep(0.005)
            began = time.monotonic()
            reply = await self._asked(name, message, headers)
            reply = {key: reply[key] for key in ("result", "error") if key in reply}
            seconds, asked = time.monotonic() - began, {"method": method, "params": params}
            call = _taped(name, digest, asked, reply, seconds)
        session.passed(call)
        return {"jsonrpc": "2.0", "id": message["id"]} | reply

    async def close(self) -> None:
        """Leave the servers; their processes end with the attempt."""
        for opening in self.live.values():
            opening.cancel()
            if opening.done() and not opening.cancelled() and not opening.exception():
                await opening.result().close()

    async def _asked(self, name: str, message: Message, headers: Mapping[str, str]) -> Message:
        """Asks a server; one that fails ends the attempt."""
        try:
            if name not in self.live:
                self.live[name] = asyncio.create_task(self._opened(name, message, headers))
            server = await asyncio.shield(self.live[name])
            return await server.send(message, headers)
        except EnvironmentFailed as error:
            self.session.fail(error)
            raise Refused(502, "mcp_failed", str(error)) from error

    async def _opened(self, name: str, first: Message, headers: Mapping[str, str]) -> Server:
        server: Server
        if url := self.urls[name]:
            server = HttpServer(name, url)
        else:
            server = await PipeServer.of(name, await self.start(name))
        hello = self.hello.get(name)
        try:
            if hello and first is not hello:  # the tape answered it
                await server.send(hello, headers)
                ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                await server.send(ready, headers)
        except BaseException:
            await server.close()
            raise
        return server


class PipeServer:
    """A server that reads and writes lines."""

    def __init__(
        self,
        name: str,
        lines: asyncio.StreamReader,
        pipes: tuple[asyncio.WriteTransport, asyncio.ReadTransport],
    ) -> None:
        self.name, self.lines, self.pipes = name, lines, pipes
        self.waiting: dict[int, asyncio.Future[Message]] = {}
        self.asked: dict[int, Any] = {}  # the agent's ids
        self.number = 0
        self.reading = asyncio.create_task(self._read())

    @classmethod
    async def of(cls, name: str, folder: str) -> PipeServer:
        """Opens the pipes of a process, which waits for that. Raises EnvironmentFailed."""
        loop, lines = asyncio.get_running_loop(), asyncio.StreamReader(LONGEST_LINE)
        theirs = os.fdopen(os.open(f"{folder}/stdout", os.O_RDONLY | os.O_NONBLOCK), "rb", 0)
        reader = asyncio.StreamReaderProtocol(lines)
        reading, _ = await loop.connect_read_pipe(lambda: reader, theirs)
        try:
            stdin = await _opened_pipe(name, f"{folder}/stdin")
            out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, stdin)
        except BaseException:
            reading.close()
            raise
        return cls(name, lines, (out, reading))

    async def send(self, message: Message, headers: Mapping[str, str]) -> Message:
        """Returns the reply, under a number of its own: several clients may use the server."""
        if message.get("method") == "notifications/cancelled":
            self._cancel(message)
            return {}
        if "id" not in message:
            self._write(message)
            return {}
        self.number += 1
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        if self.reading.done():
            raise _failed(self.name, "has ended")
        number = self.number
        self.waiting[number], self.asked[number] = reply, message["id"]
        self._write(message | {"id": number})
        try:
            return await reply
        finally:
            self.asked.pop(number)

    async def close(self) -> None:
        self.reading.cancel()
        for pipe in self.pipes:
            pipe.close()

    def _cancel(self, message: Message) -> None:
        """Forward that a request is cancelled, unless several clients use its id."""
        params = message.get("params")
        given = params if isinstance(params, dict) else {}
        numbers = [n for n, asked in self.asked.items() if asked == given.get("requestId")]
        if len(numbers) == 1:
            self._write(message | {"params": given | {"requestId": numbers[0]}})

    def _write(self, message: Message) -> None:
        self.pipes[0].write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        why = "has ended"
        try:
            while line := await self.lines.readline():
                self._take(line)
        except ValueError:
            why = f"wrote a line of more than {LONGEST_LINE} bytes"
        finally:
            for reply in self.waiting.values():
                if not reply.done():
                    reply.set_exception(_failed(self.name, why))

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return  # text that the server printed
        if not isinstance(message, dict):
            return
        if "method" in message:
            if "id" in message:
                refusal = {"code": -32601, "message": "the client offers nothing"}
                self._write({"jsonrpc": "2.0", "id": message["id"], "error": refusal})
            return
        number = message.get("id")
        reply = self.waiting.pop(number, None) if isinstance(number, int) else None
        if reply and not reply.done():
            reply.set_result(message)


class HttpServer:
    """A server at a URL (streamable HTTP)."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url, self.own = name, url, dict[str, str]()
        # The attempt has a limit.
        self.client = httpx.AsyncClient(timeout=None, follow_redirects=True)

    async def send(self, message: Message, headers: Mapping[str, str]) -> Message:
        """Posts a message. Returns the reply, which a stream may hold."""
        given = {name: headers[name] for name in FORWARDED if name in headers}
        accept = {"accept": "application/json, text/event-stream"}
        try:
            answer = await self.client.post(
                self.url, json=message, headers=accept | given | self.own
            )
        except httpx.HTTPError as error:
            raise _failed(self.name, f"does not answer ({error!r:.200})") from None
        if MCP_SESSION in answer.headers:
            self.own = {MCP_SESSION: answer.headers[MCP_SESSION]}
        if "id" not in message:
            return {}
        lines = [line.removeprefix("data:") for line in LINE_END.split(answer.text)]
        for text in (answer.text, *lines):
            try:
                reply = json.loads(text)
            except ValueError:
                continue
            if isinstance(reply, dict) and reply.get("id") == message["id"]:
                return reply
        raise _failed(self.name, f"gave no reply (status {answer.status_code})")

    async def close(self) -> None:
        await self.client.aclose()


async def _opened_pipe(name: str, path: str) -> BinaryIO:
    """Opens the input of a process when it has opened its end. Raises EnvironmentFailed."""
    end = time.monotonic() + START_S
    while True:
        try:
            return os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb", 0)
        except OSError:
            if time.monotonic() > end:
                raise _failed(name, f"has not started within {START_S:g} s") from None
            await asyncio.sleep(0.005)


def _taped(name: str, digest: str, request: Message, reply: Message, seconds: float) -> TapedCall:
    asked, said = json.dumps(request, ensure_ascii=False), json.dumps(reply, ensure_ascii=False)
    return TapedCall(
        dialect=MCP,
        digest=digest,
        parent=-1,
        messages=({"role": "user", "content": asked[:LONGEST_KEPT]},),
        reply={"role": "tool", "content": said[:LONGEST_KEPT]},
        finish=WHOLE if len(said) <= LONGEST_KEPT else "cut",
        seconds=seconds,
        trained=False,
        model=f"{MCP}:{name}",
    )


def _failed(name: str, why: str) -> EnvironmentFailed:
    return EnvironmentFailed(f"agent: the MCP server {name} {why}", cause="mcp_failed")
