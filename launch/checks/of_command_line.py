"""Checks the options, the run folder, the devices, the disk, and the names in the settings."""

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from actors.engine_arguments import check_engine_arguments
from buffer.sampling import samplers, task_samplers
from launch.backends.backend import Backend
from launch.checks.plan_options import PlanOptions
from launch.topology.machines import RequestedPlaces, described
from learner import checkpoint_command
from learner.metrics.loggers import registry as loggers
from r3l.errors import UserError, install_module
from r3l.models.model_folder import float32_bytes
from r3l.run.config import RunConfig
from r3l.run.files.run_folder import RunFolder
from r3l.run.process.free_space import check_free_space
from r3l.run.settings.learner import LearnerConfig


def check_run_folder(options: PlanOptions) -> None:
    """Refuses a folder that another launcher is using. Also calls `check_exists_only_if`."""
    folder = RunFolder(options.run)
    check_exists_only_if(options.run, resume=options.resume)
    if not options.dry_run and folder.lock_file.is_file():
        with suppress(PermissionError):  # write_run_folder reports it
            folder.lock().close()


def check_exists_only_if(run: Path, *, resume: bool) -> None:
    """Refuses an existing run without `resume`. Refuses a missing run with `resume`."""
    folder = RunFolder(run)
    if folder.exists and not resume:
        raise UserError(
            f"run {run}: exists; add --resume to continue it (in Python resume=True), or choose "
            "another name"
        )
    if resume:
        folder.require_settings()


def check_hardware(options: PlanOptions, backend: Backend) -> None:
    """Refuses --hardware for a run that starts now. Refuses several machines without a cluster."""
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


def check_libraries(options: PlanOptions, backend: Backend) -> None:
    """Refuses to start a run whose processes lack a library here."""
    if options.dry_run or backend.starts_later:
        return
    for module in ("torch", "deepspeed", *(["vllm"] if options.actors else [])):
        if find_spec(module) is None:
            raise UserError(f"{module} is not installed; run {install_module(module)}")


def check_settings(config: RunConfig, options: PlanOptions, backend: Backend) -> None:
    """Refuses settings that name an unknown class, library, command or engine argument."""
    here = options.hardware is None
    if config.actor.weights.transport == "ray" and options.cluster != "ray":
        raise UserError(
            "actor.weights.transport=ray: needs the object store of a Ray cluster; add --cluster "
            "ray, or set transport to relay or zmq"
        )
    check_engine_arguments(config.actor)
    if here or backend.has_nodes:
        loggers.check_entries(config.log)
        checkpoint_command.check_command(config.learner.on_checkpoint, here=here)
    samplers.make(config.buffer.sampler)
    task_samplers.make(config.buffer.task_sampler)


def check_ranks(requested: RequestedPlaces, groups: int) -> None:
    """Refuses more ranks than there are groups in a step."""
    if requested.ranks > groups:
        raise UserError(
            f"--learner {requested.learner}: {requested.ranks} ranks, but learner.groups_per_step "
            f"is {groups}; every rank needs a group: raise groups_per_step"
        )


def check_disk(learner: LearnerConfig, options: PlanOptions, model: Path) -> None:
    """Refuses a disk without room for the run. Assumes that a checkpoint holds three float32
    numbers for each weight."""
    # One more than is kept: an old checkpoint is removed only after the new one is written.
    copies = 3 * (learner.keep_checkpoints + 1) + 1 + 2 * learner.keep_best
    if options.resume or learner.lora.rank:
        copies = 4  # such a run needs less room
    if options.hardware is None:
        check_free_space(options.run, float32_bytes(model), copies)
