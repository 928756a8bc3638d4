"""The relay of a node: fetches each set once, into memory that all engines of the node map.

    publisher ── chunks ─► Relay ── one staged set ─► engine, engine, …
                             ▲ Unix socket: "which version", progress, its file ▲

One process of the node is the relay: the one that holds the lock in `folder_of` (relay_member). It
ends with its actor. The kernel then frees the lock, and another actor becomes the relay.

A member's connection stays open while its engine loads. Until then the relay does not change the
set. If an engine loads for too long, the relay goes on with a copy of the set.
"""

import asyncio
import json
import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from actors.weights.subscriber import NO_LONGER_SERVED, WeightSubscriber
from r3l.errors import WeightsError

log = logging.getLogger(__name__)

SOCKET = "s"
TICK_S = 1.0
"""Seconds between two lines of progress."""
LOADS_S = 30.0
"""Seconds by which an engine's load may delay the next version of the node."""
LINE = 1 << 16
"""Most bytes of a line on the socket."""


class Relay:
    """Serves a node's members from a thread, on a Unix socket in `folder`. `subscriber`: its
    connection to the publisher, used by that thread alone."""

    def __init__(self, subscriber: WeightSubscriber, folder: Path) -> None:
        self.subscriber, self.folder = subscriber, folder
        self.holds: tuple[str, int] | None = None
        """The origin and version of the staged set; None while it changes."""
        self._loading: set[asyncio.StreamWriter] = set()
        self._changing = asyncio.Lock()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the service. Its members then fetch from the publisher or from another relay."""
        with suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except OSError as error:
            log.warning("weights: no relay in %s (%s)", self.folder, error)
        finally:
            self.subscriber.close()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        (self.folder / SOCKET).unlink(missing_ok=True)  # of a relay that ended
        await asyncio.start_unix_server(self._serve, self.folder / SOCKET, limit=LINE)
        await self._stop.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = json.loads(await reader.readline())
            wanted = (str(asked["origin"]), int(asked["version"]))
            await _tell(writer, await self._brought(wanted, writer))
            await reader.read()  # until the member closes, after its engine has loaded
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.info("weights: a member of the relay left (%s)", error)
        finally:
            self._loading.discard(writer)
            writer.close()

    async def _brought(
        self, wanted: tuple[str, int], writer: asyncio.StreamWriter
    ) -> dict[str, Any]:
        """Returns the file of the wanted set, or why there is none. Meanwhile tells the member how
        many bytes came."""
        bringing = asyncio.ensure_future(self._bring(wanted, writer))
        try:
            while not (await asyncio.wait([bringing], timeout=TICK_S))[0]:
                metrics = self.subscriber.metrics
                came = metrics.weights_full_bytes + metrics.weights_patch_bytes
                waits = int(time.monotonic()) if self._loading else 0  # for an engine that loads
                await _tell(writer, {"came": came + waits})
            return {"path": bringing.result()}
        except WeightsError as error:
            return {"error": str(error), "cause": error.cause}
        finally:
            bringing.cancel()

    async def _bring(self, wanted: tuple[str, int], writer: asyncio.StreamWriter) -> str:
        """Returns the path of the staged set once it is the wanted one. From then on, the member
        counts as loading it. Raises WeightsError."""
        async with self._changing:
            if self.holds != wanted:
                await self._renew()
            staged = self.subscriber.staged
            if self.holds != wanted or staged is None:
                raise WeightsError(f"weights {wanted[1]}: no longer served", cause=NO_LONGER_SERVED)
            self._loading.add(writer)
            return staged.path

    async def _renew(self) -> None:
        """Fetches the newest version, once no engine loads the set."""
        self.subscriber.loaded = self.holds
        manifest = await self.subscriber.latest()
        if manifest is None:
            return
        until = time.monotonic() + LOADS_S
        while self._loading and time.monotonic() < until:
            await asyncio.sleep(0.01)
        if self._loading and self.subscriber.staged is not None:
            self.subscriber.metrics.weights_failed["relay_late_engine"] += 1
            log.warning("weights %d: an engine of this node is still loading after %g s, so the "
                        "relay continues with a copy", manifest.version, LOADS_S)  # fmt: skip
            copy = await asyncio.to_thread(self.subscriber.staged.copy)
            self.subscriber.staged.close()  # who loads it has a file of its own
            self.subscriber.staged = copy
            self._loading.clear()
        self.holds = None
        await self.subscriber.fetch(manifest)
        self.holds = (manifest.origin, manifest.version)


async def _tell(writer: asyncio.StreamWriter, line: dict[str, Any]) -> None:
    writer.write(json.dumps(line).encode() + b"\n")
    await writer.drain()


def folder_of(endpoint: str, base: Path) -> Path:
    """Returns the folder of the relay for the publisher at `endpoint`, and makes it. Raises
    WeightsError if another user could write to it."""
    from xxhash import xxh3_64_hexdigest

    folder = base / f"r3l-{os.getuid()}-{xxh3_64_hexdigest(endpoint.encode())}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise WeightsError(f"weights: no relay in {folder} ({error})", cause="relay") from None
    if not folder.is_dir() or folder.is_symlink() or found.st_uid != os.getuid():
        raise WeightsError(f"weights: no relay in {folder}, which is not yours", cause="relay")
    if found.st_mode & 0o077:
        raise WeightsError(
            f"weights: no relay in {folder}: other users have rights to it", cause="relay"
        )
    return folder
