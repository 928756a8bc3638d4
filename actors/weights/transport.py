"""Ways to bring a weight set to an engine, with the publisher as the fallback.

    publisher ── manifest ─────────────────────────► follow (actors.weights.subscriber)
        └── chunks ─► zmq | relay | ray ─► Transport ─┘ stages the set, checked against the manifest

The manifest always comes from the publisher itself. So it is always noticed if a transport brings
other bytes than those that were published.
"""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from actors.weights.subscriber import NO_LONGER_SERVED, WeightSubscriber
from r3l.errors import UserError, WeightsError, install
from r3l.run.settings.actor import WeightsConfig
from r3l.weights.manifest import Manifest

log = logging.getLogger(__name__)

AGAIN_S = 60.0
"""Seconds for which a transport that failed is not asked again."""


class Transport(Protocol):
    """Brings published sets to this process. WeightSubscriber is one, from the publisher itself."""

    def bring(self, manifest: Manifest) -> AbstractAsyncContextManager[str]:
        """Stages the manifest's set, checked against its checksums. Yields the path of its file,
        which does not change inside the context. Raises WeightsError if the set does not arrive."""

    def close(self) -> None:
        """Frees what the transport holds."""


class OrFromPublisher:
    """Uses `transport`. If it fails, fetches from the publisher, and counts the failure by its
    cause in `weights_failed`."""

    def __init__(self, transport: Transport, subscriber: WeightSubscriber) -> None:
        self.transport, self.subscriber = transport, subscriber
        self._again_at = 0.0

    @asynccontextmanager
    async def bring(self, manifest: Manifest) -> AsyncIterator[str]:
        async with AsyncExitStack() as stack:
            path = await self._from_transport(manifest, stack)
            if path is None:
                path = await stack.enter_async_context(self.subscriber.bring(manifest))
            yield path

    async def _from_transport(self, manifest: Manifest, stack: AsyncExitStack) -> str | None:
        if time.monotonic() < self._again_at:
            return None
        try:
            return await stack.enter_async_context(self.transport.bring(manifest))
        except WeightsError as error:
            if error.cause == NO_LONGER_SERVED:  # there is a newer version
                raise
            self.subscriber.metrics.weights_failed[error.cause] += 1
            if error.cause != "ray_other_version":  # the next one may fit
                self._again_at = time.monotonic() + AGAIN_S
            log.warning("%s; the set is fetched from the publisher", error)
            return None

    def close(self) -> None:
        self.transport.close()


def transport_of(
    config: WeightsConfig, subscriber: WeightSubscriber, keys: Path | None
) -> Transport:
    """Returns the transport that the settings ask for. Raises UserError if its library is not
    installed."""
    if config.transport == "relay":
        from actors.weights.relay_member import FromRelay

        return OrFromPublisher(FromRelay(subscriber, keys), subscriber)
    if config.transport == "ray":
        from actors.weights.ray_objects import FromRay

        try:
            return OrFromPublisher(FromRay(subscriber), subscriber)
        except ImportError:
            raise UserError(
                "actor.weights.transport=ray: Ray is not installed; on every node, run "
                f"{install('ray')}"
            ) from None
    return subscriber
