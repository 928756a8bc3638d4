"""The HTTP server of the gateway: authentication, limits, streams, and actors.gateway.dialects.

    POST /v1/chat/completions, /v1/responses, /v1/messages    GET /v1/models
    POST /r3l/result    GET /r3l/task    POST /mcp/NAME/KEY

KEY is the attempt's key. Other paths need `Authorization: Bearer KEY` or `x-api-key: KEY`. If a
client sends two keys, one of them must be the attempt's.
"""

import asyncio
import hashlib
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from actors.gateway.address import check_certificate, listen, reached_at
from actors.gateway.chat_completions import MODEL, Answer, Refused, bad
from actors.gateway.dialects import CHAT, DIALECTS, Dialect, request_of
from actors.gateway.other_models import OtherModels
from actors.gateway.session import Session

BODY_LIMIT = 32 << 20  # bytes of a request
KEEP_ALIVE_S = 15.0
"""Seconds between the comment lines that keep a stream open."""
END_S = 2.0


class WebApp:
    """Serves `sessions`, keyed by secret key. `others`: the other models that agents may ask."""

    def __init__(self, sessions: Mapping[str, Session], others: OtherModels | None = None) -> None:
        self.sessions, self.others = sessions, others or OtherModels({})
        routes = [
            *(Route(path, self._call, methods=["POST"]) for path in DIALECTS),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/r3l/task", self._task, methods=["GET"]),
            Route("/r3l/result", self._result, methods=["POST"]),
            Route("/mcp/{name}/{key}", self._mcp, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes, exception_handlers={Refused: _refusal})

    @asynccontextmanager
    async def served(self, host: str, port: int, certificate: str = "") -> AsyncIterator[str]:
        """Runs the server and yields its URL, which has been tried. Port 0 means any free port.
        With host 0.0.0.0 or ::, the URL has this machine's name. `certificate`: a PEM file with a
        key, for https. Raises UserError if listening fails."""
        if certificate:
            check_certificate(certificate)
        listening = listen(host, port)
        # Else the kernel holds an answer back until the client confirms its head: 40 ms a call.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            self.app,
            log_level="warning",
            lifespan="off",
            access_log=False,
            ws="none",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=int(END_S),
            ssl_certfile=os.path.expanduser(certificate) or None,
        )
        server = uvicorn.Server(config)
        # The signal handlers are the actor's.
        server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            bound = listening.getsockname()[1]
            shown = await asyncio.to_thread(reached_at, host, bound)
            yield f"http{'s' * bool(certificate)}://{shown}:{bound}"
        finally:
            server.should_exit = server.force_exit = True
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S + 1.0):
                    await serving
            listening.close()

    async def _call(self, request: Request) -> Response:
        dialect, session = DIALECTS[request.scope["path"]], self._session(request)
        raw = await _read(request)
        body = _parsed(raw)
        if server := self.others.server_of(body):
            return await self.others.answer(session, server, request, raw, dialect)
        asked = request_of(dialect, body)
        body_hash = hashlib.blake2b(raw, digest_size=16).hexdigest()
        again = request.headers.get("x-stainless-retry-count", "0") != "0"
        sampling = session.sampling(asked, body_hash, dialect.name, again=again)
        if body.get("stream"):
            await asyncio.wait([sampling], timeout=KEEP_ALIVE_S)
            if not sampling.done() or not sampling.exception():
                events = self._events(session, sampling, body_hash, dialect, body)
                return StreamingResponse(events, media_type="text/event-stream")
        answer = await asyncio.shield(sampling)
        written = JSONResponse(dialect.write(answer | _model(body), body))
        if not _gone(request):
            session.received(body_hash)
        return written

    async def _events(
        self,
        session: Session,
        sampling: asyncio.Task[Answer],
        body_hash: str,
        dialect: Dialect,
        body: dict[str, Any],
    ) -> AsyncIterator[str]:
        """Yields the events of a stream, and comment lines while the reply is sampled."""
        while not sampling.done():
            yield ": sampling\n\n"
            await asyncio.wait([sampling], timeout=KEEP_ALIVE_S)
        try:
            answer = sampling.result()
        except Refused as refused:
            yield f"data: {json.dumps(dialect.error(refused))}\n\n"
            return
        *most, last = [event async for event in dialect.events(answer | _model(body), body)]
        for event in most:
            yield event
        session.received(body_hash)  # before the last event, after which the agent may ask again
        yield last

    async def _models(self, request: Request) -> Response:
        length = getattr(self._session(request).policy, "context_length", None)
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "r3l"}
        return JSONResponse({"object": "list", "data": [model | {"max_model_len": length}]})

    async def _task(self, request: Request) -> Response:
        return JSONResponse(self._session(request).shown)

    async def _result(self, request: Request) -> Response:
        session = self._session(request)
        session.finish(_parsed(await _read(request)))
        return JSONResponse({"graded": True} if session.graded else {})

    async def _mcp(self, request: Request) -> Response:
        given = request.path_params
        answer = self._session_of(given["key"]).answer_mcp
        assert answer is not None  # it is set before the agent starts
        reply = await answer(given["name"], _parsed(await _read(request)), request.headers)
        return Response(status_code=202) if reply is None else JSONResponse(reply)

    def _session(self, request: Request) -> Session:
        given = request.headers.getlist
        keys = [value.partition(" ")[2] for value in given("authorization")] + given("x-api-key")
        return self._session_of(next((key for key in keys if key in self.sessions), ""))

    def _session_of(self, key: str) -> Session:
        session = self.sessions.get(key)
        if session is None:
            raise Refused(401, "invalid_api_key", "the key belongs to no running attempt")
        return session


def _gone(request: Request) -> bool:
    """Whether the client has disconnected. Must not be called before the body is read."""
    # Starlette's own method would take a quarter of a call's time.
    receiving = request.receive().__await__()
    try:
        next(receiving)
    except StopIteration as received:
        return bool(received.value["type"] == "http.disconnect")
    receiving.close()
    return False


async def _read(request: Request) -> bytes:
    """Reads a request's body. Raises Refused if it is too long."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_LIMIT:
            raise Refused(413, "request_too_large", f"a request has at most {BODY_LIMIT} bytes")
    return bytes(body)


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
        if b"\\u" in raw:
            json.dumps(body, ensure_ascii=False).encode()  # half a surrogate pair is refused
    except (ValueError, RecursionError):
        raise bad("the body is not JSON, or holds half a surrogate pair") from None
    if not isinstance(body, dict):
        raise bad("the body must be a JSON object")
    return body


def _model(body: Mapping[str, Any]) -> dict[str, str]:
    """Returns the field `model` of an answer: the model that the request names."""
    return {"model": str(body.get("model") or MODEL)}


async def _refusal(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, Refused)
    dialect = DIALECTS.get(request.url.path, CHAT)
    headers = {503: {"retry-after": "1"}, 413: {"connection": "close"}}.get(refused.status, {})
    return JSONResponse(dialect.error(refused), refused.status, headers)
