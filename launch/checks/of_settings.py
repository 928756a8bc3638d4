"""Checks settings that name a class, a library, a command or an engine argument."""

from __future__ import annotations

from actors.engine_arguments import check_engine_arguments
from buffer.sampling import samplers, task_samplers
from launch.checks.draft import Draft
from learner import checkpoint_command
from learner.metrics.loggers import registry as loggers


def check_engine(draft: Draft) -> None:
    """Refuses an argument that the engine does not know."""
    check_engine_arguments(draft.config.actor)


def check_loggers(draft: Draft) -> None:
    """Refuses a logger whose library is not installed on this machine."""
    if draft.options.hardware is None or draft.backend.has_nodes:
        loggers.check(draft.config.log)


def check_checkpoint_command(draft: Draft) -> None:
    """Refuses a learner.on_checkpoint command that cannot run."""
    here = draft.options.hardware is None
    if here or draft.backend.has_nodes:
        checkpoint_command.check(draft.config.learner.on_checkpoint, here=here)


def check_samplers(draft: Draft) -> None:
    """Refuses an unknown sampler or task sampler."""
    samplers.make(draft.config.buffer.sampler)
    task_samplers.make(draft.config.buffer.tasks)
