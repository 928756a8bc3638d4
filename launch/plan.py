"""Checks a run's settings and options and makes its plan, before any process is started.

settings, options ─► Draft ─► CHECKS, one after the other ─► Plan ─► the run's folder
                               └ the first that fails: one line, exit code 2
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TextIO

from buffer.wire.curve_keys import generate
from launch.checks import of_command_line, of_model, of_settings
from launch.checks.draft import Draft, PlanOptions
from launch.inspection import versions
from launch.topology.placement import Plan
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.files.run_folder import RunFolder

CHECKS: tuple[Callable[[Draft], object], ...] = (
    # Cheap checks come first: a typing mistake is answered at once.
    of_command_line.check_run_folder,
    of_command_line.check_addresses,
    of_command_line.check_hardware,
    of_settings.check_engine,
    of_settings.check_loggers,
    of_settings.check_checkpoint_command,
    of_settings.check_samplers,
    # Then the machines: nvidia-smi or Ray may take seconds to describe them.
    of_command_line.check_devices,
    of_command_line.check_ranks,
    # Then what is read from disk: tasks and the model.
    attrgetter("tasks"),
    of_model.check_model,
    of_model.check_agent,
    of_model.check_learner,
    # Then what needs both: whether everything fits and can be reached.
    attrgetter("topology"),
    attrgetter("services"),
    of_command_line.check_disk,
    attrgetter("changed"),
    of_model.check_checkpoint,
    # Then first steps: the user's own code runs here for the first time.
    of_model.check_first_steps,
    of_model.check_world,
)
"""An attribute of the draft raises UserError where it is computed."""


def make_plan(config: RunConfig, options: PlanOptions) -> Plan:
    """Checks a run and returns its plan. Raises UserError if a check fails."""
    draft = Draft(config, options)
    for check in CHECKS:
        check(draft)
    return draft.plan()


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
