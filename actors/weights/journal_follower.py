"""Takes weights from a learner's journal, without a connection to the learner.

The journal's folder may be on a network file system, or be copied to this machine during the run: a
file of the journal is complete as soon as it has its name.
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
    """Takes weights from a journal (r3l.weights.journal), as WeightSubscriber from a publisher.

    `endpoint`: file:// and the folder's path; at first the folder may be empty or missing. Raises
    UserError for a path that is not absolute.
    """

    def __init__(self, endpoint: str) -> None:
        folder = Path(endpoint.removeprefix(SCHEME))
        if not folder.is_absolute():
            raise UserError(f"weights {endpoint!r:.200}: must look like file:///PATH/OF/journal")
        self.journal, self.metrics = Journal(folder), ActorMetrics()
        self.loaded: tuple[str, int] | None = None
        self.staged: StagedWeights | None = None

    async def latest(self) -> Manifest | None:
        """The newest version's manifest; None if there is none or the engine holds that set.

        Raises WeightsError for a file that is damaged, or was removed since it was listed.
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
