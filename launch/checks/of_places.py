"""Checks of the machines: devices, memory, addresses that other machines reach, disk."""

from __future__ import annotations

from launch.checks.draft import Draft
from launch.topology.placement import place_ranks
from r3l.errors import UserError
from r3l.model_folder import float32_bytes
from r3l.process.free_space import check_free_space


def check_devices(draft: Draft) -> None:
    """Raises UserError if the machines have fewer devices than the learner has ranks."""
    place_ranks(draft.requested, draft.found[1])


def check_ranks(draft: Draft) -> None:
    """Raises UserError unless every rank gets a group at each step."""
    ranks, groups = draft.requested.ranks, draft.config.learner.groups_per_step
    if ranks > groups:
        raise UserError(
            f"--learner {draft.options.learner}: {ranks} ranks, but learner.groups_per_step is "
            f"{groups}; every rank needs a group: raise groups_per_step"
        )


def check_memory(draft: Draft) -> None:
    """Raises UserError if the processes do not fit into the memory of their GPUs."""
    _ = draft.topology


def check_services(draft: Draft) -> None:
    """Raises UserError for missing keys, and for an address that an actor cannot reach."""
    _ = draft.services


def check_disk(draft: Draft) -> None:
    """Raises UserError if the disk has no room for the run."""
    if draft.options.hardware is None:
        check_free_space(draft.options.run, float32_bytes(draft.model))
