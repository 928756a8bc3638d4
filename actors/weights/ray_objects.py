"""Stages sets from Ray's object store (r3l.weights.ray_store).

A node gets each object once, into its shared memory, from any node that has it. An engine that
missed a version, or joins late, fetches from the publisher.
"""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from actors.weights.staging import StagedWeights
from actors.weights.subscriber import WeightSubscriber
from r3l.errors import WeightsError
from r3l.weights.manifest import Manifest
from r3l.weights.ray_store import WHOLE, RayStore

AT_ONCE = 8
"""Chunks that are requested at once; a deadline applies to them together."""


class FromRay:
    """Brings sets from Ray's object store. Raises ImportError if Ray is not installed."""

    def __init__(self, subscriber: WeightSubscriber) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ImportError("ray")
        self.subscriber = subscriber

    @asynccontextmanager
    async def bring(self, manifest: Manifest) -> AsyncIterator[str]:
        subscriber, limit = self.subscriber, self.subscriber.timeout_s
        store = RayStore(manifest.origin, subscriber.bulk_key)
        bases, references = await asyncio.to_thread(store.find, manifest.version, limit)
        staged = subscriber.stage(manifest)
        missing = staged.missing(manifest)
        if not len(bases) == len(references) == manifest.layout.num_chunks:
            raise WeightsError("weights: Ray's registry lists other chunks", cause="ray")
        if any(bases[at] not in (WHOLE, staged.versions[at]) for at in missing):
            raise WeightsError(
                f"weights {manifest.version}: Ray's object store has only changes to a version "
                "that this engine missed",
                cause="ray_other_version",
            )
        for begin in range(0, len(missing), AT_ONCE):
            indices = missing[begin : begin + AT_ONCE]
            wanted = [(at, bases[at], references[at]) for at in indices]
            await asyncio.to_thread(self._stage, store, staged, manifest, wanted)
        yield staged.path

    def _stage(
        self,
        store: RayStore,
        staged: StagedWeights,
        manifest: Manifest,
        wanted: Sequence[tuple[int, int, Any]],
    ) -> None:
        bodies = store.get(manifest.version, wanted, self.subscriber.timeout_s)
        for (index, base, _), body in zip(wanted, bodies, strict=True):
            if base == WHOLE:
                self.subscriber.metrics.weights_full_bytes += len(body)
                staged.replace(index, manifest, body)
            else:
                self.subscriber.metrics.weights_patch_bytes += len(body)
                staged.patch(index, manifest, [body])

    def close(self) -> None:
        """Does nothing: the subscriber frees the set, and Ray closes its own connection."""
