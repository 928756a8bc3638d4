"""Reads weights from a learner's journal instead of a connection to the learner.

The journal's folder may be on a network file system, or be copied to this machine during the run. A
journal file is complete as soon as it has its name.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from actors.weights.staging import StagedWeights
from r3l.actor_metrics import ActorMetrics
from r3l.errors import UserError, WeightsError
from r3l.weights.journal import Journal
from r3l.weights.manifest import Manifest

SCHEME = "file://"


class JournalFollower:
    """Reads weights from a journal (r3l.weights.journal). WeightSubscriber is its counterpart for a
    publisher.

    `endpoint` is file:// and the folder's path. The folder may be empty or missing at first.
    Raises UserError if the path is not absolute.
    """

    def __init__(self, endpoint: str) -> None:
        folder = Path(endpoint.removeprefix(SCHEME))
        if not folder.is_absolute():
            raise UserError(f"weights {endpoint!r:.200}: must look like file:///PATH/OF/journal")
        self.journal, self.metrics = Journal(folder), ActorMetrics()
        self.loaded: tuple[str, int] | None = None
        self.staged: StagedWeights | None = None

    async def latest(self) -> Manifest | None:
        """Return the newest manifest, or None if the journal is empty or the engine is up to date.

        Raises WeightsError if a file is damaged or has just been removed.
        """
        held = self.journal.held()
        try:
            manifest = self.journal.manifest(held[-1]) if held else None
        except UserError as error:
            raise WeightsError(str(error), cause="journal") from error
        same = manifest and (manifest.origin, manifest.version) == self.loaded
        return None if same else manifest

    async def fetch(self, manifest: Manifest) -> StagedWeights:
        """Stage the manifest's set. Raises WeightsError if it cannot be rebuilt."""
        return await asyncio.to_thread(self._rebuild, manifest)

    def close(self) -> None:
        """Free the staged set."""
        if self.staged is not None:
            self.staged.close()
            self.staged = None

    def _rebuild(self, manifest: Manifest) -> StagedWeights:
        try:
            rebuilt, data = self.journal.rebuild(manifest.version)
        except UserError as error:
            raise WeightsError(str(error), cause="journal") from error
        if self.staged is None or self.staged.layout != rebuilt.layout:
            self.close()
            self.staged = StagedWeights(rebuilt.layout, rebuilt.origin)
        for index in range(manifest.layout.num_chunks):  # `replace` checks each chunk
            self.staged.replace(index, manifest, data[rebuilt.layout.span(index)].data)
        self.metrics.weights_full_bytes += len(data)
        return self.staged
