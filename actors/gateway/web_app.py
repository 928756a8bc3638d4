"""The HTTP server of the gateway: authentication, limits, streams, and actors.dialects.dialects.

    POST /v1/chat/completions, /v1/responses, /v1/messages    GET /v1/models
    POST /r3l/result    GET /r3l/task    POST /mcp/NAME/KEY

KEY is the attempt's key. Other paths need `Authorization: Bearer KEY` or `x-api-key: KEY`. If a
client sends two keys, one of them must be the attempt's. Any other path or method gets 404 or 405,
with a list of what is offered.
"""

import asyncio
import hashlib
import json
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from actors.dialects.chat_completions import (
    MODEL,
    UNTRAINED,
    AgentRequest,
    Answer,
    Refused,
    bad,
    too_deep,
)
from actors.dialects.dialects import CHAT, DIALECTS, Dialect, request_of
from actors.dialects.fields import FieldLog
from actors.gateway.address import check_certificate, listen, reached_at
from actors.gateway.asked_names import AskedNames
from actors.gateway.connections import Connections
from actors.gateway.other_models import OtherModels
from actors.gateway.refused_requests import RefusedRequests
from actors.gateway.request_limits import RequestReader, check_values
from actors.gateway.session import Session

BODY_LIMIT = 32 << 20  # bytes of a request
HELD_LIMIT = 2 * BODY_LIMIT
"""The most bytes of an attempt's requests that are being read or wait for an answer."""
MOST_OPEN = 512
"""The most requests of an attempt that are being read or wait for an answer."""
KEEP_ALIVE_S = 15.0
"""Seconds between the comment lines that keep a stream open."""
END_S = 2.0
OFFERED = f"POST {', '.join(DIALECTS)} and GET /v1/models"
"""The answer to a request for any other path names this."""


class WebApp:
    """Serves `sessions`, keyed by secret key. `others`: the other models that agents may ask.
    `counts`: the actor's counts of what agents do. `refused`: the latest refused requests."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        others: OtherModels | None = None,
        counts: Counter[str] | None = None,
    ) -> None:
        self.sessions, self.others = sessions, others or OtherModels({})
        self.fields, self.names, self.refused = FieldLog(), AskedNames(), RefusedRequests()
        self.counts = Counter[str]() if counts is None else counts
        self.reader = RequestReader()
        routes = [
            *(Route(path, self._call, methods=["POST"]) for path in DIALECTS),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/r3l/task", self._task, methods=["GET"]),
            Route("/r3l/result", self._result, methods=["POST"]),
            Route("/mcp/{name}/{key}", self._mcp, methods=["POST"]),
        ]
        handlers = {
            Refused: self._refusal,
            HTTPException: self._not_offered,
            RecursionError: self._too_deep,
            Exception: self._failure,
        }
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    @asynccontextmanager
    async def served(self, host: str, port: int, certificate: str = "") -> AsyncIterator[str]:
        """Runs the server and yields its URL, after a test connection to it. Port 0 means any free
        port. With host 0.0.0.0 or ::, the URL has this machine's name. `certificate`: a PEM file
        with a key, for https. Raises UserError if listening fails."""
        if certificate:
            check_certificate(certificate)
        listening = listen(host, port)
        # Else the kernel holds an answer back until the client confirms its head: 40 ms a call.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections = Connections(self._closed)
        config = uvicorn.Config(
            self.app,
            http=connections.protocol,
            backlog=1024,
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
        sweeping = asyncio.create_task(connections.sweep())
        try:
            bound = listening.getsockname()[1]
            shown = await asyncio.to_thread(reached_at, host, bound)
            yield f"http{'s' * bool(certificate)}://{shown}:{bound}"
        finally:
            sweeping.cancel()
            self.reader.close()
            server.should_exit = server.force_exit = True
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S + 1.0):
                    await serving
            listening.close()

    def _closed(self) -> None:
        self.counts["connections_closed"] += 1

    async def _call(self, request: Request) -> Response:
        session = self._session(request)
        async with _read_body(session, request) as raw:
            return await self._answered(session, request, raw)

    async def _answered(self, session: Session, request: Request, raw: bytes) -> Response:
        dialect, body = DIALECTS[request.scope["path"]], _parsed(raw, finite=True)
        if server := self.others.server_of(body):
            return await self.others.answer(session, server, request, raw, dialect)
        name = self.others.policy_of(body)
        named = body | {"model": name} if name in (MODEL, UNTRAINED) else body
        asked, ready = await self.reader.read(
            session, raw, named, dialect.name, partial(request_of, dialect)
        )
        self.names.note(session, name)
        self._note(session, dialect, body, asked)
        body_hash = hashlib.blake2b(raw, digest_size=16).hexdigest()
        sampling = session.sampling(
            asked,
            body_hash,
            dialect.name,
            again=_repeats(request),
            gone=partial(_gone, request),
            ready=ready,
        )
        if body.get("stream"):
            await asyncio.wait([sampling], timeout=KEEP_ALIVE_S)
            if not sampling.done() or not sampling.exception():
                events = self._events(session, sampling, dialect, body)
                return StreamingResponse(events, media_type="text/event-stream")
        answer = await asyncio.shield(sampling)
        written = JSONResponse(dialect.write(answer | _model(body), body))
        if not _gone(request):
            session.received(sampling)
        return written

    def _note(
        self, session: Session, dialect: Dialect, body: dict[str, Any], asked: AgentRequest
    ) -> None:
        """Names the fields of a request that are not followed; counts the unknown ones."""
        session.metrics.agent["unknown_fields"] += self.fields.note(dialect.name, body)
        read = session.reader.chat.read_arguments(asked.arguments)
        for name in json.loads(asked.arguments):
            if name not in read:
                why = "the policy's chat template does not read it"
                self.fields.name(dialect.name, f"chat_template_kwargs.{name}", why)

    async def _events(
        self,
        session: Session,
        sampling: asyncio.Task[Answer],
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
            yield dialect.broken(refused)
            return
        *most, last = dialect.events(answer | _model(body), body)
        for event in most:
            yield event
        session.received(sampling)  # before the last event, after which the agent may ask again
        yield last

    async def _models(self, request: Request) -> Response:
        length = getattr(self._session(request).policy, "context_length", None)
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "r3l"}
        return JSONResponse({"object": "list", "data": [model | {"max_model_len": length}]})

    async def _task(self, request: Request) -> Response:
        return JSONResponse(self._session(request).shown)

    async def _result(self, request: Request) -> Response:
        session = self._session(request)
        async with _read_body(session, request) as raw:
            session.finish(_parsed(raw))
        return JSONResponse({"graded": True} if session.graded else {})

    async def _mcp(self, request: Request) -> Response:
        given = request.path_params
        session = self._session_of(given["key"])
        answer = session.answer_mcp
        assert answer is not None  # it is set before the agent starts
        async with _read_body(session, request) as raw:
            reply = await answer(given["name"], _parsed(raw), request.headers)
        if reply is None:
            return Response(status_code=202)
        # A server may write NaN or half a surrogate pair. Both are passed on unchanged.
        return Response(json.dumps(reply), media_type="application/json")

    async def _refusal(self, request: Request, refused: Exception) -> Response:
        assert isinstance(refused, Refused)
        self.counts["refused"] += 1
        name = f"{request.method} {_shown_path(request)}"
        self.refused.add(self._key(request), name, f"{refused.status}: {refused}")
        dialect = _nearest_dialect(request.url.path)
        headers = {
            503: {"retry-after": "1"},
            429: {"retry-after": "1", "connection": "close"},  # its rest is not read
            413: {"connection": "close"},
        }.get(refused.status, {})
        return JSONResponse(dialect.error(refused), refused.status, headers)

    async def _not_offered(self, request: Request, error: Exception) -> Response:
        """Answers a request to a path, or with a method, that the gateway does not offer."""
        assert isinstance(error, HTTPException)
        why = (
            f"{request.method} {_shown_path(request)} is not offered; this gateway offers {OFFERED}"
            ", so OPENAI_BASE_URL ends with /v1 and ANTHROPIC_BASE_URL does not"
        )
        return await self._refusal(request, Refused(error.status_code, "not_found_error", why))

    async def _too_deep(self, request: Request, _: Exception) -> Response:
        return await self._refusal(request, too_deep())

    async def _failure(self, request: Request, error: Exception) -> Response:
        """Answers a request that met a fault of the gateway, which the log shows."""
        fault = Refused(500, "gateway_fault", f"the gateway failed: {type(error).__name__}")
        return await self._refusal(request, fault)

    def _key(self, request: Request) -> str:
        """Returns the attempt's key that a request carries, or "" if it has none."""
        given = request.headers.getlist
        keys = [value.partition(" ")[2] for value in given("authorization")] + given("x-api-key")
        return next((key for key in keys if key in self.sessions), "")

    def _session(self, request: Request) -> Session:
        return self._session_of(self._key(request))

    def _session_of(self, key: str) -> Session:
        session = self.sessions.get(key)
        if session is None:
            raise Refused(401, "invalid_api_key", "the key belongs to no running attempt")
        return session


def _shown_path(request: Request) -> str:
    """Returns a request's path as it may be shown: without the key of an MCP server's path."""
    path = request.url.path
    return "/mcp/…" if path.startswith("/mcp/") else f"{path:.100}"


def _nearest_dialect(path: str) -> Dialect:
    """Returns the dialect whose path, without /v1, is the end of `path`; else that of chat
    completions."""
    ends = ((known.removeprefix("/v1"), dialect) for known, dialect in DIALECTS.items())
    return next((dialect for end, dialect in ends if path.endswith(end)), CHAT)


def _repeats(request: Request) -> bool:
    """Whether the client says that it repeats a request, as OpenAI's and Anthropic's clients do."""
    count = request.headers.get("x-stainless-retry-count", "")
    return count.isdecimal() and int(count[:9]) > 0


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


@asynccontextmanager
async def _read_body(session: Session, request: Request) -> AsyncIterator[bytes]:
    """Reads a request's body and yields it. Raises Refused if the body is too long, or if too much
    of the attempt is unanswered. Counts the body as unanswered in the block."""
    body, held = bytearray(), 0
    if session.open_requests >= MOST_OPEN:
        raise _too_much(f"{MOST_OPEN} requests")
    session.open_requests += 1
    try:
        async for part in request.stream():
            body += part
            held += len(part)
            session.held += len(part)
            if len(body) > BODY_LIMIT:
                raise Refused(413, "request_too_large", f"a request has at most {BODY_LIMIT} bytes")
            if session.held > HELD_LIMIT:
                raise _too_much(f"{HELD_LIMIT} bytes")
        raw = bytes(body)
        body.clear()
        yield raw
    except ClientDisconnect:
        raise Refused(
            400, "client_gone", "the client left before its request was complete"
        ) from None
    finally:
        session.open_requests -= 1
        session.held -= held


def _too_much(what: str) -> Refused:
    return Refused(
        429, "too_much_at_once", f"an attempt has at most {what} unanswered; wait for an answer"
    )


def _parsed(raw: bytes, *, finite: bool = False) -> dict[str, Any]:
    """Parses the body of a request. `finite`: refuses NaN and infinity. Raises Refused."""
    check_values(raw)
    try:
        body = json.loads(raw)
        # Half a surrogate pair is refused, however it is written.
        json.dumps(body, ensure_ascii=False, allow_nan=not finite).encode()
    except (ValueError, RecursionError):
        what = "half a surrogate pair, NaN or infinity" if finite else "half a surrogate pair"
        raise bad(f"the body is not JSON, or holds {what}") from None
    if not isinstance(body, dict):
        raise bad("the body must be a JSON object")
    return body


def _model(body: Mapping[str, Any]) -> dict[str, str]:
    """Returns the field `model` of an answer: the model that the request names."""
    return {"model": str(body.get("model") or MODEL)}
