"""A session of an OpenEnv server, over WebSocket.

    {"type": "reset", "data": {"seed": 0}}    {"type": "step", "data": ACTION}    {"type": "state"}
    ─►  {"type": "observation", "data": {"observation": {…}, "reward": 1, "done": false}}
    ─►  {"type": "state", "data": {…}}        {"type": "error", "data": {"code": …, "message": …}}

A lost connection loses the attempt, since the server then ends its environment. The next reset
opens a new connection, and waits if the server is full or away. A late answer is never read: its
connection is closed.
"""

import json
import time
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import Any, Literal

from envs import requirements
from r3l.errors import EnvironmentFailed
from r3l.run.process.endpoints import is_near

LARGEST = 32 << 20  # bytes of a message
TOO_LARGE = 1009
"""The code with which this side closes a connection after a message that is too large."""
CLOSE_S = 2.0
"""How long a closing server may take until its place is free, seconds."""
PAUSE_S = 0.5
"""Pause before a server that is full or away is asked again, seconds."""
Call = Literal["reset", "step", "state"]
ANSWERS = {"reset": "observation", "step": "observation", "state": "state"}
Cause = Literal["timeout", "lost", "full", "error", "answer"]
"""Why a call failed: no answer in time; no connection; no free session; the server's error; an
answer that breaks the protocol or the server's own schema. Counted with `openenv_` in front."""


class OpenEnvSession:
    """A session of the server at `url`. `name`: the environment's name, for messages. `timeout_s`:
    time limit of a call, including the wait for a free session, seconds."""

    def __init__(self, name: str, url: str, timeout_s: float) -> None:
        self.name, self.url, self.timeout_s = name, url, timeout_s
        self.library = requirements.package(name, "websockets", "openenv")
        self.socket: Any = None
        self.connection = ExitStack()

    def begin(self, call: Literal["reset", "step"], data: dict[str, Any]) -> dict[str, Any]:
        """Makes a call that needs no earlier call. Opens a session if there is none, or if the last
        one was lost. While the server is full or away, asks again until `timeout_s` is over."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            reused = self.socket is not None
            if reused:  # a new one may begin with the error that the server is full
                self._check_nothing_waits(call)
            try:
                self._connect(call, deadline)
                return self._ask(call, data, deadline)
            except EnvironmentFailed as error:
                full = error.cause == "openenv_full" and time.monotonic() + PAUSE_S < deadline
                if not full and not (reused and error.cause == "openenv_lost"):
                    raise
            if full:
                time.sleep(PAUSE_S)

    def ask(
        self, call: Call, data: dict[str, Any] | None = None, refusals: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Returns the server's answer, or an error whose code is in `refusals`. For any other
        error, closes the session and raises EnvironmentFailed."""
        if self.socket is None:
            raise self.failed(call, "lost", "the session has ended; an attempt begins with a reset")
        self._check_nothing_waits(call)
        return self._ask(call, data, time.monotonic() + self.timeout_s, refusals)

    def close(self) -> None:
        """Ends the session, and waits CLOSE_S until the server has freed its place. A second call
        does nothing."""
        if self.socket is not None:
            with suppress(Exception):  # the server may be gone, and that ends the session too
                self.socket.send(json.dumps({"type": "close"}))
                self.socket.recv(timeout=CLOSE_S)
        self._drop()

    def failed(self, call: str, cause: Cause, why: str) -> EnvironmentFailed:
        """Returns the failure of a call. Closes the connection, so that no answer comes late."""
        self._drop()
        one_line = " ".join(why.split())
        return EnvironmentFailed(f"{self.name}: {call}: {one_line}", cause=f"openenv_{cause}")

    def _drop(self) -> None:
        self.socket = None
        with suppress(OSError):
            self.connection.close()

    def _connect(self, call: str, deadline: float) -> None:
        client = import_module("websockets.sync.client")
        address = "ws" + self.url.removeprefix("http") + "/ws"
        while self.socket is None:
            try:
                opened = client.connect(
                    address,
                    max_size=LARGEST,
                    open_timeout=max(deadline - time.monotonic(), 0.1),
                    close_timeout=CLOSE_S,
                    ping_interval=None,  # a server that is busy with a step need not answer pings
                    proxy=None if is_near(self.url) else True,
                )
                self.socket = self.connection.enter_context(opened)
            except TimeoutError:
                raise self._late(call) from None
            except (OSError, self.library.WebSocketException) as error:
                if time.monotonic() + PAUSE_S >= deadline:
                    why = f"no connection to the server in {self.timeout_s:g} s ({error})"
                    raise self.failed(call, "lost", why) from None
                time.sleep(PAUSE_S)

    def _ask(
        self,
        call: Call,
        data: dict[str, Any] | None,
        deadline: float,
        refusals: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        message = {"type": call} | ({} if data is None else {"data": data})
        try:
            with suppress(self.library.ConnectionClosed):  # its reason may be there to be read
                self.socket.send(json.dumps(message))
            answer = json.loads(self.socket.recv(timeout=max(deadline - time.monotonic(), 0)))
        except TimeoutError:
            raise self._late(call) from None
        except (OSError, self.library.WebSocketException) as error:
            if getattr(getattr(error, "sent", None), "code", 0) == TOO_LARGE:
                why = f"the answer is larger than {LARGEST >> 20} MiB"
                raise self.failed(call, "answer", why) from None
            raise self.failed(call, "lost", f"the server closed the session ({error})") from None
        except (ValueError, RecursionError) as error:
            raise self.failed(call, "answer", f"the answer is not JSON ({error})") from None
        kind = answer.get("type") if isinstance(answer, dict) else None
        content = answer.get("data") if isinstance(answer, dict) else None
        if kind not in (ANSWERS[call], "error") or not isinstance(content, dict):
            why = f"the answer is not of the type {ANSWERS[call]}: {answer!s:.200}"
            raise self.failed(call, "answer", why)
        if kind == "error" and content.get("code") not in refusals:
            raise self._refused(call, content)
        return content

    def _check_nothing_waits(self, call: str) -> None:
        """Fails if the server has sent more answers than there were calls: the next call would get
        the surplus answer as its own."""
        try:
            more = self.socket.recv(timeout=0)
        except (TimeoutError, OSError, self.library.WebSocketException):
            return
        raise self.failed(call, "answer", f"the server had sent one more answer: {more!s:.200}")

    def _late(self, call: str) -> EnvironmentFailed:
        why = f"no answer in {self.timeout_s:g} s (env option timeout_s)"
        return self.failed(call, "timeout", why)

    def _refused(self, call: str, said: dict[str, Any]) -> EnvironmentFailed:
        if said.get("code") != "CAPACITY_REACHED":
            why = f"{said.get('code')}: {said.get('message')!s:.500}"
            return self.failed(call, "error", why)
        most = said.get("max_sessions", "its")
        why = (
            f"all sessions of the server are taken (it allows {most}), and none became free in "
            f"{self.timeout_s:g} s; raise its max_concurrent_envs, or lower env.workers times the "
            "env option sessions"
        )
        return self.failed(call, "full", why)
