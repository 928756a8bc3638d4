"""Settings of the weight journal (r3l.weights.journal)."""

from __future__ import annotations

from pydantic import Field

from r3l.section import Section


class JournalConfig(Section):
    """Published weights that stay in journal/ of the run, each a patch to the one before; off
    unless one of the two is set."""

    versions: int = Field(
        0, ge=0, description="newest published versions that can be rebuilt; 0: not limited by this"
    )
    gib: float = Field(
        0.0, ge=0, description="GiB that it may take, at least two models; 0: not limited by this"
    )

    @property
    def on(self) -> bool:
        """Whether there is a journal."""
        return self.versions > 0 or self.gib > 0
