"""Checks of a run that is resumed."""

from __future__ import annotations

from launch.checks.draft import Draft
from learner import checkpoint
from r3l.model_folder import fingerprint


def check_changes(draft: Draft) -> None:
    """Raises UserError if a setting has changed that makes it another run."""
    _ = draft.changed


def check_checkpoint(draft: Draft) -> None:
    """Raises UserError if the run cannot continue from its newest checkpoint."""
    newest = checkpoint.latest(draft.options.run / checkpoint.CHECKPOINTS)
    if draft.options.resume and newest is not None:
        dtype = "torch.bfloat16" if draft.in_bfloat16 else "torch.float32"
        checkpoint.check(newest, draft.learner, dtype=dtype, origin=fingerprint(draft.model))
