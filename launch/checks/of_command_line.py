"""Checks the options, the run folder and the devices."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from launch.checks.draft import Draft
from launch.checks.services import Services
from launch.checks.services import check_addresses as check_binds
from launch.topology.placement import place_ranks
from r3l.errors import UserError
from r3l.files.run_folder import RunFolder
from r3l.model_folder import float32_bytes
from r3l.process.free_space import check_free_space


def check_run_folder(draft: Draft) -> None:
    """Refuses a folder that belongs to another run or launcher."""
    run = draft.options.run
    check_exists_only_if(run, resume=draft.options.resume)
    if not draft.options.dry_run and RunFolder(run).lock_file.is_file():
        with suppress(PermissionError):  # write_run_folder reports it
            RunFolder(run).lock().close()


def check_exists_only_if(run: Path, *, resume: bool) -> None:
    """Refuses an existing run without `resume`, and a missing run with it."""
    folder = RunFolder(run)
    if folder.exists and not resume:
        raise UserError(f"run {run}: exists; add --resume to continue it, or choose another name")
    if resume:
        folder.started()


def check_addresses(draft: Draft) -> None:
    """Refuses an address that a service cannot use."""
    check_binds(Services(draft.options.buffer_bind, draft.options.weights_bind))


def check_hardware(draft: Draft) -> None:
    """Refuses --hardware for a run that starts now, and several machines without a cluster."""
    options, backend = draft.options, draft.backend
    if options.hardware is not None and not options.dry_run and not backend.starts_later:
        raise UserError(
            f"--hardware {options.hardware}: is only for planning; add --dry-run, or leave it out"
        )
    if options.hardware is not None and len(draft.machines) > 1 and not backend.has_nodes:
        raise UserError(
            f"--hardware {options.hardware}: describes several machines; add --cluster ray or slurm"
        )


def check_devices(draft: Draft) -> None:
    """Refuses more ranks than the machines have devices."""
    place_ranks(draft.requested, draft.machines)


def check_ranks(draft: Draft) -> None:
    """Refuses more ranks than there are groups in a step."""
    ranks, groups = draft.requested.ranks, draft.config.learner.groups_per_step
    if ranks > groups:
        raise UserError(
            f"--learner {draft.options.learner}: {ranks} ranks, but learner.groups_per_step is "
            f"{groups}; every rank needs a group: raise groups_per_step"
        )


def check_disk(draft: Draft) -> None:
    """Refuses a disk that has too little room for the run. A checkpoint holds the weights and two
    moments of each; less with adapters. An old one is removed after a new one is written, as is
    the best model. A resumed run has written most of its bytes."""
    settings = draft.config.learner
    copies = 3 * (settings.keep_checkpoints + 1) + 1 + 2 * settings.keep_best
    if draft.options.resume or settings.lora.rank:
        copies = 4
    if draft.options.hardware is None:
        check_free_space(draft.options.run, float32_bytes(draft.model), copies)
