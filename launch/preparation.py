"""Checks a run's settings and options, and writes its folder. Starts no process of the run.

settings, options ─► checks ─► make_plan ─► checks of the model and tasks ─► Plan ─► run folder
                     └ the first check that fails: one line, exit code 2
"""

from dataclasses import replace
from typing import TextIO

from buffer.storage.archive_files import Archive
from buffer.storage.folder_lock import check_free
from buffer.wire.curve_keys import generate
from launch.backends.registry import backend
from launch.checks.absolute_paths import absolute
from launch.checks.budgets import (
    check_amount_is_used,
    check_first_step_fits,
    check_what_is_left,
)
from launch.checks.notes import notes
from launch.checks.of_command_line import (
    check_disk,
    check_hardware,
    check_libraries,
    check_ranks,
    check_run_folder,
    check_settings,
)
from launch.checks.of_model import (
    chat_format,
    check_agent,
    check_checkpoint,
    check_learner,
    check_world,
    model_folder,
)
from launch.checks.of_tasks import (
    check_first_steps,
    first_tasks,
    listed_openings,
    try_first_steps,
)
from launch.checks.plan_options import PlanOptions
from launch.checks.resume import changed_settings, check_data_sets, check_store
from launch.checks.services import check_addresses
from launch.inspection import versions
from launch.plan import make_plan
from launch.topology.placement import Plan
from r3l.algorithms.rehearsal.rehearse import rehearse
from r3l.errors import UserError
from r3l.files import hub_data_set
from r3l.run.config import RunConfig
from r3l.run.downloads import with_downloads
from r3l.run.files.run_folder import RunFolder


def prepare(config: RunConfig, options: PlanOptions) -> Plan:
    """Checks a run and returns its plan. Raises UserError if a check fails."""
    starter, requested = backend(options.cluster), options.places(config.actor)
    # Cheap checks come first: a typing mistake is answered at once.
    check_run_folder(options)
    check_addresses(options)
    check_hardware(options, starter)
    check_libraries(options, starter)
    check_settings(config, options, starter)
    if options.resume:
        check_what_is_left(config, RunFolder(options.run))
    rehearse(config.algorithm)
    # Then the model's folder, whose size the plan needs, and the machines: whether the processes
    # fit and reach each other. A .gguf file is converted once, a model of the hub downloaded.
    consent = {"yes": options.yes, "dry_run": options.dry_run}
    model = with_downloads(lambda: model_folder(config.model), **consent)
    known = RunFolder(options.run).own_settings() if options.resume else None
    named = config.model_copy(update={"model": str(model)})
    settled = absolute(named, known)
    plan = make_plan(settled, options)
    check_amount_is_used(config, plan.topology)
    check_ranks(requested, config.learner.groups_per_step)  # missing devices are named first
    check_disk(config.learner, options, model)
    if settled.buffer.archive:
        Archive(settled.buffer.archive)  # its libraries
    # Then what is read from disk: tasks, the chat template, a checkpoint.
    tasks = with_downloads(lambda: first_tasks(config), **consent)
    chat = None if options.dry_run else chat_format(config, model)
    if chat is not None:
        check_agent(config, chat)
    check_learner(config, requested.device, model)
    changed: tuple[str, ...] = ()
    if options.resume:
        check_store(RunFolder(options.run).store)
        changed = changed_settings(options.run, settled, force=options.force)
        check_data_sets(options.run, force=options.force)
        check_checkpoint(options.run, config.learner, requested.device, model)
    # Then first steps: the user's own environment runs here for the first time.
    steps = {} if chat is None else try_first_steps(config, tasks, chat)
    if chat is not None and steps:
        check_first_steps(named, chat, tasks, steps)
        check_first_step_fits(config, steps)
    check_world(config, named)
    if not (options.dry_run or starter.starts_later):
        check_free(RunFolder(options.run).store)  # last: a killed run may end meanwhile
    seen = None if options.dry_run else listed_openings(config)
    warnings = notes(named, steps, seen)
    return replace(plan, changed=changed, notes=tuple(warnings))


def write_run_folder(plan: Plan) -> TextIO:
    """Writes the run folder with the settings for all processes. Returns the folder's lock.

    Closing the returned file releases the lock. Raises UserError if the folder cannot be written,
    or if another launcher holds the lock.
    """
    try:
        (plan.run / "logs").mkdir(parents=True, exist_ok=True)
        lock = RunFolder(plan.run).lock()
        if plan.keys is not None and not plan.keys.exists():
            generate(plan.keys)
        RunFolder(plan.run).write_settings(plan.config)
        RunFolder(plan.run).write_versions(versions.installed())
        if hub_data_set.commits:
            RunFolder(plan.run).write_data_sets(hub_data_set.commits)
    except OSError as error:
        raise UserError(
            f"run {plan.run}: cannot be written ({error.strerror}); choose another with --run"
        ) from None
    return lock
