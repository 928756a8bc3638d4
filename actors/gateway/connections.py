"""Limits on the connections to the gateway, which apply even before a request has shown a key.

| limit | what happens |
|---|---|
| a head, or trailers, of more than 64 KiB | 400, closed (h11) |
| SILENT_S without a request, or without a byte of an unfinished one | closed |
| UNREAD_S in which a client reads nothing of its answer | closed |
| too many connections | the one that has waited longest for a request is closed; else the new one |
| anything that is not HTTP | 400, closed |

All are counted as `agent/connections_closed`. Only the first few of each kind are logged.
"""

import asyncio
import logging
import resource
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SILENT_S, UNREAD_S = 30.0, 600.0
SWEEP_S = 1.0
MOST_CONNECTIONS = 4096
MOST_LOGGED = 5
"""The most lines of one kind that the log gets."""


log = logging.getLogger(__name__)


class CountedLog:
    """Stands in for uvicorn's logger: counts the lines, passes on the first few of each kind."""

    level = logging.WARNING

    def __init__(self, count: Callable[[], None]) -> None:
        self.count, self.seen = count, dict[str, int]()

    def warning(self, message: str, *given: Any, **more: Any) -> None:
        self._write(logging.WARNING, message, *given, **more)

    def error(self, message: str, *given: Any, **more: Any) -> None:
        self._write(logging.ERROR, message, *given, **more)

    def _write(self, level: int, message: str, *given: Any, **more: Any) -> None:
        self.count()
        seen = self.seen[message] = self.seen.get(message, 0) + 1
        if seen <= MOST_LOGGED:
            last = " (more of this kind are only counted)" if seen == MOST_LOGGED else ""
            log.log(level, message.strip() + last, *given, **more)


class Connections:
    """The connections of a gateway. `count`: called for each connection that is closed because of a
    limit."""

    def __init__(self, count: Callable[[], None]) -> None:
        self.lines, self.most = CountedLog(count), most_connections()
        self.all: set[LimitedConnection] = set()
        self.waiting: dict[LimitedConnection, None] = {}
        """Those without a request that is being answered; the first has waited longest."""

    @property
    def protocol(self) -> Any:
        """Makes a server's connections, in place of uvicorn's class."""
        return partial(LimitedConnection, self)

    async def sweep(self) -> None:
        """Closes silent connections until it is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = asyncio.get_running_loop().time()
            for connection in list(self.all):
                connection.check_silence(now)


class LimitedConnection(H11Protocol):
    """One connection, within limits."""

    def __init__(self, limits: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.logger = limits.lines  # type: ignore[assignment]
        self.access_log, self.limits = False, limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        self.limits.all.add(self)
        if len(self.limits.all) > self.limits.most:
            next(iter(self.limits.waiting)).close("too many connections: one")

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.all.discard(self)
        self.limits.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except Exception as error:  # h11 lets no answer follow some errors
            self.close(f"a connection that is broken ({type(error).__name__})")
        self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def pause_writing(self) -> None:
        self.since = self.loop.time()
        super().pause_writing()

    def _wait(self) -> None:
        """Notes that the connection waits for a request or its rest, from now on."""
        self.since = self.loop.time()
        self.limits.waiting.pop(self, None)
        if self._is_idle() and not self.transport.is_closing():
            self.limits.waiting[self] = None

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def check_silence(self, now: float) -> None:
        """Closes the connection if its client has been silent or has read nothing for too long."""
        silent = now - self.since
        unfinished = self._is_idle() or (self.cycle.more_body and not self.flow.read_paused)
        if unfinished and silent > SILENT_S:
            self.close("a silent connection")
        elif self.flow.write_paused and silent > UNREAD_S:
            self.close("a connection whose client does not read")

    def close(self, why: str) -> None:
        self.limits.all.discard(self)
        self.limits.waiting.pop(self, None)
        self.limits.lines.warning(f"{why} is closed")
        self.transport.abort()


def most_connections() -> int:
    """Returns how many connections may be open: at most half of the files of this process."""
    return min(MOST_CONNECTIONS, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
