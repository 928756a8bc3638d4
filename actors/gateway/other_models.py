"""Decides who answers a request for a model: the policy, trained or not, or another server. Calls
that server and records its answer.

Passes on only the headers in FORWARDED, because other headers may hold the attempt's key. The
policy is never trained on the answers.
"""

import json
import os
import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response

from actors.dialects.chat_completions import MODEL, Refused
from actors.dialects.dialects import MESSAGES, Dialect
from actors.gateway.recorded_call import hash_of_passed
from actors.gateway.session import MOST_CALLS, Session
from r3l.errors import UserError
from r3l.run.process.endpoints import is_near
from r3l.run.settings.actor import ModelServer

FORWARDED = ("accept", "content-type", "anthropic-version", "anthropic-beta")
LIMIT_S = 600.0
LONGEST_ANSWER = 32 << 20
"""The most bytes of an answer."""


class OtherModels:
    """The servers of other models, keyed by a pattern of model names."""

    def __init__(self, servers: Mapping[str, ModelServer]) -> None:
        self.servers = servers
        for pattern, server in servers.items():
            if server.key and not os.environ.get(server.key):
                raise UserError(
                    f"actor.agent.models: {pattern}: the environment variable {server.key} is not "
                    "set; set it to the server's API key"
                )
        if not all(server.is_policy or is_near(server.url) for server in servers.values()):
            try:
                assert self.client
            except (ImportError, ValueError) as error:
                raise UserError(
                    "actor.agent.models: the proxy that the environment variables name cannot be "
                    f"used ({error}); correct or unset it"
                ) from None

    @cached_property
    def client(self) -> httpx.AsyncClient:
        """Asks servers on other machines, through the user's proxy."""
        return httpx.AsyncClient(timeout=LIMIT_S, follow_redirects=False)

    @cached_property
    def near(self) -> httpx.AsyncClient:
        """Asks servers on this machine."""
        return httpx.AsyncClient(timeout=LIMIT_S, follow_redirects=False, trust_env=False)

    def server_of(self, body: Mapping[str, Any]) -> ModelServer | None:
        """Returns the server of the model that a request names, or None for the policy."""
        server = self._decided(str(body.get("model") or ""))
        return None if server is None or server.is_policy else server

    def policy_of(self, body: Mapping[str, Any]) -> str:
        """Returns MODEL or UNTRAINED for a request to the policy. If neither r3l nor a setting
        decides what the model's name means, returns the name."""
        name = str(body.get("model") or "")
        server = self._decided(name)
        return (name or MODEL) if server is None else server.url

    def _decided(self, name: str) -> ModelServer | None:
        """Returns what the settings have for the name of a model, or None: its own entry, or else
        that of the first pattern which matches."""
        if not name or name in self.servers:
            return self.servers.get(name)
        return next((s for pattern, s in self.servers.items() if fnmatchcase(name, pattern)), None)

    async def answer(
        self, session: Session, server: ModelServer, request: Request, raw: bytes, dialect: Dialect
    ) -> Response:
        """Takes the answer from the tape, or else from the server. Raises Refused if the server
        does not answer, or if the attempt may make no more calls."""
        session.check_calls(session.passed.begun, MOST_CALLS)
        session.passed.begun += 1
        body = json.loads(raw)
        request_hash = hash_of_passed([dialect.name, body], session.ignore)
        if call := session.repeated(request_hash):
            return Response(call.reply["content"], media_type=call.reply["media_type"])
        headers = {name: request.headers[name] for name in FORWARDED if name in request.headers}
        if secret := os.environ.get(server.key, ""):
            by_name = {"x-api-key": secret}
            headers |= by_name if dialect is MESSAGES else {"authorization": f"Bearer {secret}"}
        url, began = server.url.rstrip("/") + request.url.path.removeprefix("/v1"), time.monotonic()
        try:
            client = self.near if is_near(url) else self.client
            answer, content = await posted(client, url, raw, headers)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise Refused(502, "no_answer", f"{server.url} does not answer: {why}") from None
        except AnswerRefused as error:
            raise Refused(502, "no_answer", f"{server.url} {error} (actor.agent.models)") from None
        media = answer.headers.get("content-type")
        text = content.decode(answer.encoding or "utf-8", errors="replace")
        reply = {"role": "assistant", "content": text, "media_type": media}
        if answer.status_code != 200:
            reply["finish"] = str(answer.status_code)
        asked = json.dumps(body, ensure_ascii=False)
        session.passed.record(str(body["model"]), dialect.name, request_hash, asked, reply, began)
        return Response(content, answer.status_code, media_type=media)


class AnswerRefused(Exception):
    """A server's answer was refused. The message is written to follow the server's name."""


async def posted(
    client: httpx.AsyncClient, url: str, content: bytes, headers: Mapping[str, str]
) -> tuple[httpx.Response, bytes]:
    """Posts a request. Returns the answer and its body. Raises AnswerRefused for a redirect, which
    could lead to any machine, and for a body of more than LONGEST_ANSWER bytes."""
    body = bytearray()
    async with client.stream("POST", url, content=content, headers=headers) as answer:
        if answer.is_redirect:
            place = answer.headers.get("location", "nowhere")
            raise AnswerRefused(f"redirects to {place:.200}; write that address in its place")
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > LONGEST_ANSWER:
                raise AnswerRefused(f"answers with more than {LONGEST_ANSWER} bytes")
    return answer, bytes(body)
