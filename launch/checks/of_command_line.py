"""The options of a run, and checks of them, of the run folder and of the devices."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launch.backends.backend import Backend
from launch.backends.registry import LOCAL
from launch.checks.services import LOOPBACK, Services
from launch.topology.machines import RequestedPlaces, described, parse_learner
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.files.run_folder import RunFolder
from r3l.model_folder import float32_bytes
from r3l.process.free_space import check_free_space
from r3l.settings.learner import LearnerConfig


@dataclass(frozen=True)
class PlanOptions:
    """The options of one run, named like those of r3l-launch.

    `force`: resume even with changed settings, and start even if the memory estimate is too large.
    `dry_run`: skip the slow checks (chat template, the environment's first steps). `hardware`: plan
    for these machines, which are not checked. `cluster`: the name of the backend.
    """

    run: Path
    actors: int = 1
    learner: str = "1cpu"
    buffer_bind: str = LOOPBACK
    weights_bind: str = LOOPBACK
    keys: Path | None = None
    resume: bool = False
    force: bool = False
    dry_run: bool = False
    hardware: str | None = None
    cluster: str = LOCAL

    @property
    def services(self) -> Services:
        """The addresses and keys of the services, as given."""
        return Services(self.buffer_bind, self.weights_bind, self.keys)


def check_run_folder(options: PlanOptions) -> None:
    """Refuses a folder that belongs to another run or launcher."""
    folder = RunFolder(options.run)
    check_exists_only_if(options.run, resume=options.resume)
    if not options.dry_run and folder.lock_file.is_file():
        with suppress(PermissionError):  # write_run_folder reports it
            folder.lock().close()


def check_exists_only_if(run: Path, *, resume: bool) -> None:
    """Refuses an existing run without `resume`, and a missing run with it."""
    folder = RunFolder(run)
    if folder.exists and not resume:
        raise UserError(f"run {run}: exists; add --resume to continue it, or choose another name")
    if resume:
        folder.started()


def check_hardware(options: PlanOptions, backend: Backend) -> None:
    """Refuses --hardware for a run that starts now, and several machines without a cluster."""
    hardware = options.hardware
    if hardware is None:
        return
    if not options.dry_run and not backend.starts_later:
        raise UserError(
            f"--hardware {hardware}: is only for planning; add --dry-run, or leave it out"
        )
    if len(described(hardware)) > 1 and not backend.has_nodes:
        raise UserError(
            f"--hardware {hardware}: describes several machines; add --cluster ray or slurm"
        )


def requested_places(config: RunConfig, options: PlanOptions) -> RequestedPlaces:
    """Parses the places that the options request. Raises UserError."""
    gpus = config.actor.engine.get("tensor_parallel_size", 1)
    if not isinstance(gpus, int):
        raise UserError(f"actor.engine.tensor_parallel_size={gpus}: must be a number of GPUs")
    return RequestedPlaces(options.actors, *parse_learner(options.learner), gpus)


def check_ranks(requested: RequestedPlaces, groups: int) -> None:
    """Refuses more ranks than there are groups in a step."""
    if requested.ranks > groups:
        raise UserError(
            f"--learner {requested.learner}: {requested.ranks} ranks, but learner.groups_per_step "
            f"is {groups}; every rank needs a group: raise groups_per_step"
        )


def check_disk(options: PlanOptions, learner: LearnerConfig, model: Path) -> None:
    """Refuses a disk that has too little room for the run. A checkpoint holds the weights and two
    moments of each; less with adapters. An old one is removed after a new one is written, as is
    the best model. A resumed run has written most of its bytes."""
    copies = 3 * (learner.keep_checkpoints + 1) + 1 + 2 * learner.keep_best
    if options.resume or learner.lora.rank:
        copies = 4
    if options.hardware is None:
        check_free_space(options.run, float32_bytes(model), copies)
