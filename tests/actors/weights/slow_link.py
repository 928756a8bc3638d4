"""A slow link between a publisher and a subscriber: a TCP proxy in the subscriber's event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

STEP = 8192  # bytes passed on at a time


class SlowLink:
    """Passes `rate` bytes a second on from the publisher; cuts a connection after `cut` bytes."""

    def __init__(self, target: str, rate: float, cut: float) -> None:
        self.target, self.rate, self.cut = target.removeprefix("tcp://"), rate, cut
        self.passed = self.cuts = 0
        self.endpoint = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self.target.split(":")
        theirs, ours = await asyncio.open_connection(host, int(port))
        up = asyncio.create_task(self._up(reader, ours))
        with suppress(ConnectionError, asyncio.CancelledError):
            await self._down(theirs, writer)
        up.cancel()
        ours.close()
        writer.close()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(STEP):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        before = self.passed
        while data := await reader.read(STEP):
            await asyncio.sleep(len(data) / self.rate)
            writer.write(data)
            await writer.drain()
            self.passed += len(data)
            if self.passed - before > self.cut:
                self.cuts += 1
                return


@asynccontextmanager
async def slow_link(target: str, rate: float, cut: float = float("inf")) -> AsyncIterator[SlowLink]:
    """A slow link to the address `target`; its own is `endpoint`."""
    link = SlowLink(target, rate, cut)
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    link.endpoint = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield link
    finally:
        server.close()
