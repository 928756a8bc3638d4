"""Relays an agent's calls to its MCP servers, and records them on the tape.

    POST /mcp/NAME/KEY ─► before the pivot of a retry whose world is put back: recorded reply
                    └───► otherwise the server: a process next to the agent, or a URL

A server starts at the first call that the tape does not answer. So in a retry it starts in the
restored world. If the tape answered the agent's `initialize`, the new server first gets that
`initialize`. The relay refuses requests from a server to its client.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import stat
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from actors.dialects.chat_completions import Refused, bad
from actors.gateway.other_models import AnswerRefused, posted
from actors.gateway.passed_calls import Message
from actors.gateway.recorded_call import RetryPlayer, diverged, hash_of_passed
from actors.gateway.session import Session
from r3l.errors import EnvironmentFailed
from r3l.run.process.endpoints import is_near
from r3l.text import encodable
from r3l.views.tape import MCP

MOST_MCP_CALLS = 4096
LONGEST_LINE = 32 << 20
START_S = 60.0
"""Seconds that a server process has to answer its first request."""
FORWARDED = ("mcp-protocol-version", "mcp-method", "mcp-name")
MCP_SESSION, JSON = "mcp-session-id", "application/json"
LINE_END = re.compile(r"\r\n|\r|\n")
"""Line ends of a stream. `str.splitlines` would also split at characters that JSON may hold."""
Start = Callable[[str], Awaitable[str]]
"""Starts the process of a server; returns the folder with its pipes."""


class McpRelay:
    """The MCP servers of one attempt. `urls`: name -> address. If the address is "", the relay
    starts the server."""

    def __init__(self, session: Session, start: Start) -> None:
        self.session, self.start = session, start
        self.urls: Mapping[str, str] = {}
        self.live: dict[str, asyncio.Task[Server]] = {}
        self.begun = 0
        """How many messages the agent has sent, without pings."""
        self.hello: dict[str, Message] = {}

    async def answer(
        self, name: str, message: Message, headers: Mapping[str, str]
    ) -> Message | None:
        """Answers a message from the agent; returns None for a notification. Raises Refused, for
        example if the attempt ends first."""
        method = str(message.get("method", ""))
        self.session.check_calls(self.begun, MOST_MCP_CALLS)
        self.begun += method != "ping" or "id" not in message
        answering = asyncio.create_task(self._answer(name, method, message, headers))
        ending = asyncio.create_task(self.session.ended.wait())
        try:
            await asyncio.wait((answering, ending), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.session.check_open()
            return await answering
        finally:
            answering.cancel()
            ending.cancel()

    async def _answer(
        self, name: str, method: str, message: Message, headers: Mapping[str, str]
    ) -> Message | None:
        session = self.session
        if name not in self.urls:
            raise Refused(404, "no_such_server", f"env.options.mcp names no server {name}")
        if "id" not in message:
            if name in self.live:
                await self._ask(name, message, headers)
            return None
        given = message.get("params") or {}
        if not method or not isinstance(given, dict):
            raise bad("a message to an MCP server must have a method; its params must be an object")
        if method == "ping":  # at times of its own, which a retry does not repeat
            return {"jsonrpc": "2.0", "id": message["id"], "result": {}}
        if method == "initialize":
            self.hello[name] = message
        asked = {"method": method, "params": {k: v for k, v in given.items() if k != "_meta"}}
        request_hash = hash_of_passed([MCP, name, asked], session.ignore)
        tape = session.tape if isinstance(session.tape, RetryPlayer) else None
        if tape and tape.stateful and tape.pivot_node is None:
            call = session.repeated(request_hash)
            if call is None:
                shown = json.dumps(asked["params"])
                session.fail(
                    diverged(f"the tape lacks {method} {shown:.200} of MCP server {name}", 0)
                )
                raise Refused(400, "replay_diverged", "the base attempt did not make this call")
            reply: Message = json.loads(call.reply["content"])
            return {"jsonrpc": "2.0", "id": message["id"]} | reply
        if tape and tape.stateful:
            await session.restored.wait()
            session.check_open()
        began = time.monotonic()
        reply = await self._ask(name, message, headers)
        reply = {key: reply[key] for key in ("result", "error") if key in reply}
        texts = [_text(each) for each in (asked, reply)]
        said = {"role": "tool", "content": texts[1]}
        session.passed.record(f"{MCP}:{name}", MCP, request_hash, texts[0], said, began)
        return {"jsonrpc": "2.0", "id": message["id"]} | reply

    async def close(self) -> None:
        """Disconnects from the servers. Their processes end with the attempt."""
        for opening in self.live.values():
            opening.cancel()
            if opening.done() and not opening.cancelled() and not opening.exception():
                await opening.result().close()

    async def _ask(self, name: str, message: Message, headers: Mapping[str, str]) -> Message:
        """Returns a server's reply to a message. If the server fails, ends the attempt."""
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


class Flow(asyncio.BaseProtocol):
    """The state of a pipe to a server. `ready`: whether the server has read most of what it was
    sent, or is gone."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()

    def pause_writing(self) -> None:
        self.ready.clear()

    def resume_writing(self) -> None:
        self.ready.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.ready.set()


class PipeServer:
    """A server process behind pipes, with one JSON message a line. `pipes[0]` leads to the server.
    `waiting` holds the open requests: sent id -> (agent's id, reply)."""

    def __init__(
        self,
        name: str,
        lines: asyncio.StreamReader,
        pipes: tuple[Any, ...],
        flow: Flow | None = None,
    ) -> None:
        self.name, self.lines, self.pipes, self.number = name, lines, pipes, 0
        self.flow, self.turn = flow or Flow(), asyncio.Lock()
        self.waiting: dict[int, tuple[Any, asyncio.Future[Message]]] = {}
        self.reading = asyncio.create_task(self._read())

    @classmethod
    async def of(cls, name: str, folder: str) -> PipeServer:
        """Opens the pipes in `folder`."""
        # `held` is a reader: without one, the input cannot be opened before the server reads it.
        stdin, stdout = f"{folder}/stdin", f"{folder}/stdout"
        flags = (stdin, os.O_RDONLY), (stdin, os.O_WRONLY), (stdout, os.O_RDONLY)
        held, written, read = _pipes(name, *flags)
        loop, lines = asyncio.get_running_loop(), asyncio.StreamReader(LONGEST_LINE)
        out, flow = await loop.connect_write_pipe(Flow, os.fdopen(written, "wb", 0))
        reader = asyncio.StreamReaderProtocol(lines)
        reading, _ = await loop.connect_read_pipe(lambda: reader, os.fdopen(read, "rb", 0))
        return cls(name, lines, (out, reading, os.fdopen(held)), flow)

    async def send(self, message: Message, headers: Mapping[str, str]) -> Message:
        """Sends a message; returns the reply. Renumbers requests: clients may use the same ids.
        Waits until the server has read most of what was sent before."""
        if message.get("method") == "notifications/cancelled":
            await self._cancel(message)
            return {}
        if "id" not in message:
            await self._write(message)
            return {}
        if self.reading.done():
            raise _failed(self.name, "has ended")
        self.number += 1
        number = self.number
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.waiting[number] = message["id"], reply
        try:
            async with asyncio.timeout(START_S if number == 1 else None):
                await self._write(message | {"id": number})
                return await reply
        except TimeoutError:
            raise _failed(
                self.name, f"has not answered within {START_S:g} s of its start"
            ) from None
        finally:
            del self.waiting[number]

    async def close(self) -> None:
        self.reading.cancel()
        for pipe in self.pipes:
            pipe.close()

    async def _cancel(self, message: Message) -> None:
        """Forwards a cancellation if exactly one open request has the cancelled id."""
        params = message.get("params")
        given = params if isinstance(params, dict) else {}
        numbers = [n for n, (asked, _) in self.waiting.items() if asked == given.get("requestId")]
        if len(numbers) == 1:
            await self._write(message | {"params": given | {"requestId": numbers[0]}})

    async def _write(self, message: Message) -> None:
        async with self.turn:
            await self.flow.ready.wait()
            self._put(message)

    def _put(self, message: Message) -> None:
        self.pipes[0].write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        why = "has ended"
        try:
            while line := await self.lines.readline():
                self._take(line)
        except ValueError:
            why = f"wrote a line of more than {LONGEST_LINE} bytes"
        finally:
            for _, reply in self.waiting.values():
                if not reply.done():
                    reply.set_exception(_failed(self.name, why))

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return  # text that the server printed
        if not isinstance(message, dict):
            return
        if "method" in message:
            # Questions of a server that reads no answers are not answered.
            if "id" in message and self.flow.ready.is_set():
                refusal = {"code": -32601, "message": "the client offers nothing"}
                self._put({"jsonrpc": "2.0", "id": message["id"], "error": refusal})
            return
        for number, (_, reply) in self.waiting.items():
            if number == message.get("id") and not reply.done():
                reply.set_result(message)


class HttpServer:
    """A server at a URL (streamable HTTP)."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url, self.own = name, url, dict[str, str]()
        # No timeout here: the attempt's applies.
        self.client = httpx.AsyncClient(
            timeout=None, follow_redirects=False, trust_env=not is_near(url)
        )

    async def send(self, message: Message, headers: Mapping[str, str]) -> Message:
        """Posts a message. Returns the reply, which may come in a stream."""
        given = {name: headers[name] for name in FORWARDED if name in headers}
        kinds = {"accept": "application/json, text/event-stream", "content-type": JSON}
        try:
            content = json.dumps(message).encode()
            answer, body = await posted(self.client, self.url, content, kinds | given | self.own)
        except httpx.HTTPError as error:
            raise _failed(self.name, f"does not answer ({error!r:.200})") from None
        except AnswerRefused as error:
            raise _failed(self.name, f"{error} (env.options.mcp)") from None
        if MCP_SESSION in answer.headers:
            self.own = {MCP_SESSION: answer.headers[MCP_SESSION]}
        if "id" not in message:
            return {}
        whole = body.decode(errors="replace")
        lines = [line.removeprefix("data:") for line in LINE_END.split(whole)]
        for text in (whole, *lines):
            try:
                reply = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(reply, dict) and reply.get("id") == message["id"]:
                return reply
        raise _failed(self.name, f"gave no reply (status {answer.status_code})")

    async def close(self) -> None:
        await self.client.aclose()


Server = PipeServer | HttpServer


def _text(value: Any) -> str:
    """Writes JSON that can be recorded: half a surrogate pair stays an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return text if encodable(text) == text else json.dumps(value)


def _pipes(name: str, *wanted: tuple[str, int]) -> list[int]:
    """Opens pipes. Raises EnvironmentFailed if the agent has put something else in their place."""
    opened: list[int] = []
    try:
        for path, flags in wanted:
            opened.append(os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW))
            if not stat.S_ISFIFO(os.fstat(opened[-1]).st_mode):
                raise FileNotFoundError(errno.ENOENT, "another file has replaced one", path)
    except OSError as error:
        for pipe in opened:
            os.close(pipe)
        raise _failed(name, f"has lost its pipes ({error.strerror})") from None
    return opened


def _failed(name: str, why: str) -> EnvironmentFailed:
    return EnvironmentFailed(f"agent: the MCP server {name} {why}", cause="mcp_failed")
