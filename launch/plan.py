"""Checks a run's settings and options and makes its plan, before any process is started.

settings, options ─► checks, one after the other ─► Plan ─► the run's folder
                     └ the first that fails: one line, exit code 2
"""

from __future__ import annotations

from typing import TextIO

from actors.engine_arguments import check_engine_arguments
from buffer.sampling import samplers, task_samplers
from buffer.wire.curve_keys import generate
from launch.backends.registry import backend
from launch.checks.notes import notes
from launch.checks.of_command_line import (
    PlanOptions,
    check_disk,
    check_hardware,
    check_ranks,
    check_run_folder,
    requested_places,
)
from launch.checks.of_model import (
    chat_format,
    check_agent,
    check_checkpoint,
    check_learner,
    check_world,
    in_bfloat16,
    model_folder,
)
from launch.checks.of_tasks import check_first_steps, first_tasks, try_first_steps
from launch.checks.resume import changed_settings
from launch.checks.services import check_addresses
from launch.inspection import versions
from launch.topology.gpu_memory import Estimate
from launch.topology.machines import described
from launch.topology.placement import Plan, place, place_ranks
from learner import checkpoint_command
from learner.metrics.loggers import registry as loggers
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.files.run_folder import RunFolder

ANY_NODE = "other nodes"


def make_plan(config: RunConfig, options: PlanOptions) -> Plan:
    """Checks a run and returns its plan. Raises UserError if a check fails."""
    starter = backend(options.cluster)
    # Cheap checks come first: a typing mistake is answered at once.
    check_run_folder(options)
    check_addresses(options.services)
    check_hardware(options, starter)
    _check_settings(config, here=options.hardware is None, nodes=starter.has_nodes)
    requested = requested_places(config, options)
    # Then the machines: nvidia-smi or Ray may take seconds to describe them.
    machines = starter.machines() if options.hardware is None else described(options.hardware)
    place_ranks(requested, machines)
    check_ranks(requested, config.learner.groups_per_step)
    # Then what is read from disk: tasks and the model.
    tasks, model = first_tasks(config), model_folder(config.model)
    chat = None if options.dry_run else chat_format(config, model)
    if chat is not None:
        check_agent(config, chat)
    bf16 = in_bfloat16(config.learner, requested.device)
    check_learner(config.learner, model, requested.device, bf16=bf16)
    # Then what needs both: whether everything fits and can be reached.
    settled = config.model_copy(update={"model": str(model)})  # the processes read these settings
    topology = place(requested, machines, Estimate.of(settled), force=options.force)
    anywhere = (ANY_NODE,) if starter.moves_actors else ()
    services = options.services.reached_from(topology.elsewhere or anywhere, options.run)
    check_disk(options, config.learner, model)
    changed: tuple[str, ...] = ()
    if options.resume:
        changed = changed_settings(options.run, settled, force=options.force)
        check_checkpoint(options.run, config.learner, model, bf16=bf16)
    # Then first steps: the user's own code runs here for the first time.
    steps = {} if chat is None else try_first_steps(config, tasks, chat)
    if chat is not None and steps:
        check_first_steps(settled, chat, tasks, steps)
    check_world(config, settled)
    return Plan(
        config=settled,
        run=options.run,
        topology=topology,
        buffer_bind=services.buffer,
        weights_bind=services.weights,
        resume=options.resume,
        keys=services.keys,
        changed=changed,
        notes=tuple(notes(settled, steps, slow=not options.dry_run)),
    )


def _check_settings(config: RunConfig, *, here: bool, nodes: bool) -> None:
    """Refuses settings that name an unknown class, library, command or engine argument. `here`: the
    run is for this machine; `nodes`: for those of a cluster."""
    check_engine_arguments(config.actor)
    if here or nodes:
        loggers.check(config.log)
        checkpoint_command.check(config.learner.on_checkpoint, here=here)
    samplers.make(config.buffer.sampler)
    task_samplers.make(config.buffer.tasks)


def write_run_folder(plan: Plan) -> TextIO:
    """Writes the run folder with the settings for all processes; returns the folder's lock.

    This process holds the lock until the file is closed. Raises UserError if the folder cannot be
    written or another launcher holds it.
    """
    try:
        (plan.run / "logs").mkdir(parents=True, exist_ok=True)
        lock = RunFolder(plan.run).lock()
        if plan.keys is not None and not plan.keys.exists():
            generate(plan.keys)
        RunFolder(plan.run).write_settings(plan.config)
        RunFolder(plan.run).write_versions(versions.installed())
    except OSError as error:
        raise UserError(
            f"run {plan.run}: cannot be written ({error.strerror}); choose another with --run"
        ) from None
    return lock
