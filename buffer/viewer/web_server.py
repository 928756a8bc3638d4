"""Serves the viewer's page, and the groups as JSON. Read-only, and on this machine only.

    GET /KEY/                             the page
    GET /KEY/api/run                      title, facts, version, groups by state, Catalogue.change
    GET /KEY/api/tasks  ?purpose= &filter= &env= &task= &order= &offset= &limit=
    GET /KEY/api/groups ?purpose= &filter= &env= &task= &before=GROUP &limit=   newest first
    GET /KEY/api/group  ?id=              one group with its attempts

KEY is new at every start, so that neither other users of the machine nor other sites in the user's
browser can read the groups. Host names of other machines are refused (DNS rebinding).
"""

import errno
import secrets
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import lmdb

from buffer.tools.group_facts import parse_filter
from buffer.viewer import page
from buffer.viewer.catalogue import Catalogue, Facts, tasks
from buffer.viewer.evaluation_catalogue import EvaluationCatalogue
from r3l.errors import NotFound, R3LError, UserError

LIMIT = 500  # of lines in one reply
ORDERS = ("corrections", "newest", "lowest", "most")
HOSTS = {"127.0.0.1", "localhost"}
Query = dict[str, str]


@dataclass(frozen=True)
class Viewed:
    """The content of a viewer's page. `notice`: why the run's settings are unknown, or "". `facts`:
    names and values of the run's settings."""

    title: str
    catalogue: Catalogue | EvaluationCatalogue
    notice: str = ""
    facts: tuple[tuple[str, str], ...] = ()


class Viewer(ThreadingHTTPServer):
    """Serves one catalogue on the loopback address. Raises UserError if the port cannot be used."""

    daemon_threads = True
    most_connections = 32  # each has a thread; a browser opens six

    def __init__(self, viewed: Viewed, port: int) -> None:
        self.viewed, self.catalogue = viewed, viewed.catalogue
        self.key = secrets.token_urlsafe(12)
        self.page, self.policy = page.page_html().encode(), page.policy()
        self._free = threading.BoundedSemaphore(self.most_connections)
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            why = "in use" if error.errno == errno.EADDRINUSE else "not allowed for this user"
            raise UserError(
                f"--port {port}: {why}; choose another, or 0 for any free one"
            ) from None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{self.key}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a connection in a thread. Closes it at once if too many are open."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection, then makes room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores browsers that disconnected."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def answer(self, name: str, query: Query) -> Any:
        """Answers a request with values that JSON can hold. Raises NotFound, UserError."""
        answers: dict[str, Callable[[Query], Any]] = {
            "run": self._run,
            "tasks": self._tasks,
            "groups": self._groups,
            "group": self._group,
        }
        if name not in answers:
            raise NotFound(f"there is no {name!r:.40}; ask for {', '.join(answers)}")
        if (shown := self.catalogue).gone:
            raise UserError(f"{shown.folder}: was moved or deleted; start the viewer again")
        return answers[name](query)

    def _run(self, query: Query) -> Any:
        return self.catalogue.summary() | {
            "title": self.viewed.title,
            "kind": self.catalogue.kind,
            "notice": self.viewed.notice,
            "facts": self.viewed.facts,
        }

    def _tasks(self, query: Query) -> Any:
        order = query.get("order", ORDERS[0])
        if order not in ORDERS:
            raise UserError(f"order {order!r:.40}: must be one of {', '.join(ORDERS)}")
        lines = tasks(self._accepted(query), order)
        offset, limit = _number(query, "offset", 0), _limit(query)
        return {"total": len(lines), "tasks": lines[offset : offset + limit]}

    def _groups(self, query: Query) -> Any:
        before = query.get("before", "")
        if not (query.get("task") or query.get("filter", "").strip()):
            total, found = self.catalogue.page(query.get("purpose", ""), before, _limit(query))
            return {"total": total, "groups": found}
        groups = self._accepted(query)
        total = len(groups)
        if before:
            groups = [group for group in groups if group["group"] < before]
        return {"total": total, "groups": groups[: _limit(query)]}

    def _group(self, query: Query) -> Any:
        return self.catalogue.group(query.get("id", ""))

    def _accepted(self, query: Query) -> Sequence[Facts]:
        """Returns the groups that match the query's purpose, task and filter, newest first."""
        groups = self.catalogue.read()
        if purpose := query.get("purpose"):
            groups = [group for group in groups if group["purpose"] == purpose]
        if task := query.get("task"):
            env = query.get("env", "")
            groups = [g for g in groups if g["task"] == task and env in ("", g["env"])]
        if text := query.get("filter", "").strip():
            accepts = parse_filter(text)
            groups = [group for group in groups if accepts(group)]
        return groups


class Handler(BaseHTTPRequestHandler):
    """Handles one request from a browser."""

    server: Viewer
    timeout = 30  # seconds that a connection may be silent
    server_version, sys_version = "r3l", ""

    def do_GET(self) -> None:
        """Answers with the page or with JSON; errors are JSON too."""
        if not _is_here(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.FORBIDDEN, "this host name is not served")
            return
        path, _, asked = self.path.partition("?")
        key, slash, rest = path.removeprefix("/").partition("/")
        if not secrets.compare_digest(key.encode(), self.server.key.encode()):
            self._refuse(HTTPStatus.NOT_FOUND, "open the address that r3l-buffer view printed")
        elif slash and not rest:
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        elif rest.startswith("api/"):
            query = {name: values[-1] for name, values in parse_qs(asked).items()}
            self._answer(rest.removeprefix("api/"), query)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def _answer(self, name: str, query: Query) -> None:
        try:
            body = page.as_json(self.server.answer(name, query))
        except NotFound as error:
            self._refuse(HTTPStatus.NOT_FOUND, str(error))
        except UserError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except (R3LError, lmdb.Error, OSError) as error:  # damage, no free reader
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        else:
            self._send(HTTPStatus.OK, "application/json", body)

    def _refuse(self, status: HTTPStatus, error: str) -> None:
        self._send(status, "application/json", page.as_json({"error": error}))

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", f"{self.server.policy}; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, because a page that follows a run sends a request every two seconds."""


def _is_here(host: str) -> bool:
    """Returns whether a Host header names this machine. The port may differ, as in a tunnel."""
    name, _, port = host.partition(":")
    return name in HOSTS and (not port or port.isdecimal())


def _limit(query: Query) -> int:
    return min(_number(query, "limit", 100), LIMIT)


def _number(query: Query, name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not text.isdecimal() or len(text) > 9:
        raise UserError(f"{name} {text!r:.40}: must be a number from 0 to 999999999")
    return int(text)
