"""An engine's side of the relay of its node (actors.weights.relay).

    connect ─► no relay? take the lock, become the relay ─► ask for a version ─► map its file
                                                             └► silent or wrong: ask the publisher

Every chunk of the file is compared with the manifest before the engine may load it.
"""

import asyncio
import fcntl
import json
import mmap
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from actors.weights.relay import LINE, SOCKET, Relay, folder_of
from actors.weights.subscriber import NO_LONGER_SERVED, WeightSubscriber
from r3l.errors import WeightsError
from r3l.weights.chunks import check_chunk
from r3l.weights.manifest import Manifest

STARTS_S = 5.0
"""Seconds that a relay may take to start."""
LONGEST_S = 3600.0
"""Seconds that a relay may take for a set, as long as bytes come."""


class FromRelay:
    """Loads sets that the relay of this node staged. Becomes the relay if there is none. `keys`:
    the client's key file for the publisher. `base`: where the processes of a node meet."""

    def __init__(
        self, subscriber: WeightSubscriber, keys: Path | None, base: Path | None = None
    ) -> None:
        self.subscriber, self._keys = subscriber, keys
        self._base = base or Path(tempfile.gettempdir())
        self._lock = -1
        self.relay: Relay | None = None
        """The relay of this node, if this process is it."""

    @asynccontextmanager
    async def bring(self, manifest: Manifest) -> AsyncIterator[str]:
        folder = folder_of(self.subscriber.endpoint, self._base)
        reader, writer = await self._connect(folder)
        file = -1
        try:
            path = await self._ask_relay(reader, writer, manifest)
            try:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise _failed(f"its set cannot be opened ({error})") from None
            await asyncio.to_thread(check_file, file, manifest)
            self.subscriber.forget()  # what came from the publisher while there was no relay
            # A path of this process, since the relay may end during the load.
            yield f"/proc/{os.getpid()}/fd/{file}"
        finally:
            writer.close()
            if file >= 0:
                os.close(file)

    def close(self) -> None:
        if self.relay is not None:
            self.relay.close()
            self.relay = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def _connect(self, folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to the relay, or becomes it. Raises WeightsError if no relay starts."""
        until = time.monotonic() + STARTS_S
        while True:
            try:
                return await asyncio.open_unix_connection(folder / SOCKET, limit=LINE)
            except OSError as error:
                if time.monotonic() > until:
                    raise _failed(f"none has started in {folder} ({error})") from None
            self._become_relay(folder)
            await asyncio.sleep(0.02)

    def _become_relay(self, folder: Path) -> None:
        """Starts the relay in this process, unless a process of this node has the lock."""
        if self.relay is not None:
            return
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it starts now, or hangs
            os.close(lock)
            return
        own = self.subscriber
        fetching = WeightSubscriber(
            own.endpoint, timeout_s=own.timeout_s, keys=self._keys, set_limit=own.set_limit
        )
        fetching.metrics = own.metrics  # the node's bytes are counted once, here
        self._lock, self.relay = lock, Relay(fetching, folder)

    async def _ask_relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, manifest: Manifest
    ) -> str:
        """Returns the path of the set's file. Raises WeightsError if the relay is silent or slow,
        or has no such set."""
        asked = {"origin": manifest.origin, "version": manifest.version}
        writer.write(json.dumps(asked).encode() + b"\n")
        came, moved, began = -1, time.monotonic(), time.monotonic()
        while True:
            line = await self._line(reader)
            if "path" in line:
                return str(line["path"])
            if line.get("cause") == NO_LONGER_SERVED:
                raise WeightsError(
                    f"weights {manifest.version}: no longer served", cause=NO_LONGER_SERVED
                )
            if "error" in line:
                raise _failed(str(line["error"])[:300])
            now = time.monotonic()
            if line.get("came") != came:
                came, moved = line.get("came", -1), now
            if now > moved + self.subscriber.timeout_s or now > began + LONGEST_S:
                raise _failed(f"it got no bytes for {now - moved:.0f} s", "relay_slow")

    async def _line(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        limit = self.subscriber.timeout_s
        try:
            async with asyncio.timeout(limit):
                line = await reader.readline()
            if not line:
                raise _failed("it has ended")
            said = json.loads(line)
        except TimeoutError:
            raise _failed(f"no reply for {limit:g} s", "relay_slow") from None
        except (OSError, ValueError) as error:
            raise _failed(f"its reply cannot be read ({error})") from None
        if not isinstance(said, dict):
            raise _failed("its reply cannot be read")
        return said


def check_file(file: int, manifest: Manifest) -> None:
    """Raises WeightsError unless the file has the manifest's set, byte for byte."""
    layout = manifest.layout
    if os.fstat(file).st_size != max(layout.total_bytes, 1):
        raise _failed(f"its set {manifest.version} has a wrong size", "relay_wrong")
    if not layout.total_bytes:
        return
    mapped = mmap.mmap(file, layout.total_bytes, prot=mmap.PROT_READ)
    data = np.frombuffer(mapped, np.uint8)
    for index in range(layout.num_chunks):
        try:
            check_chunk(data[layout.span(index)], manifest, index)
        except WeightsError as error:
            raise _failed(f"its set is wrong: {error}", "relay_wrong") from None


def _failed(why: str, cause: str = "relay_lost") -> WeightsError:
    return WeightsError(f"weights: the relay of this node: {why}", cause=cause)
