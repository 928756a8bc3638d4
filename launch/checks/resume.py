"""Checks of a run that is resumed: what has changed, what may not change, what is left to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.builtin.policy import model_path
from learner.checkpoint import CHECKPOINTS, latest, read_state
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.files.run_folder import RunFolder
from r3l.model_folder import model_digest
from r3l.settings.section import flat_settings

FIXED = (
    "env.name",
    "env.options",
    "env.others",
    "algorithm.name",
    "seed",
    "learner.groups_per_step",
    "model",
)
"""What makes another run of it: resumed with another value only if the user insists."""


def changed_settings(run: Path, config: RunConfig, *, force: bool) -> tuple[str, ...]:
    """A line for each setting that differs from the run's own. Raises UserError for one of FIXED,
    unless `force`."""
    known = RunFolder(run).own_settings()
    before, after = (flat_settings(each.model_dump(mode="json")) for each in (known, config))
    if _same_model(run, model_path(known.model), Path(config.model)):
        before["model"] = config.model  # wherever it lies now
    flat = before | after
    keys = sorted(
        key for key in flat if before.get(key) != after.get(key) and not _holds(key, flat)
    )
    lines = tuple(f"{key}: {before.get(key, '–')} -> {after.get(key, '–')}" for key in keys)
    for key, line in zip(keys, lines, strict=True):
        if not force and any(f"{key}.".startswith(f"{fixed}.") for fixed in FIXED):
            raise UserError(
                f"run {run}: has another {line}; start a new run with --run, or add --force to go "
                "on with what was learned and stored before"
            )
    return lines


def nothing_to_do(run: Path, config: RunConfig) -> str:
    """Why a run has no step, evaluation or model left to make, and what can be done; "" if it has.

    Quick: it loads no model and starts nothing.
    """
    folder = RunFolder(run)
    newest = latest(run / CHECKPOINTS) if folder.exists else None
    done = read_state(newest).version if newest else 0
    steps = config.learner.steps
    finished = (run / "model" / "config.json").is_file() and (
        not config.eval.tasks or done in {line.step for line in folder.history().evaluations}
    )
    if done < steps or (done == steps and not finished):
        return ""
    have = f"all {steps} steps are done" if done == steps else f"{done} steps are done already"
    return (
        f"run {run}: {have}, there is nothing to do; for more: "
        f"--resume --steps {done + max(done, 1)}; the model: {run / 'model'}"
    )


def _same_model(run: Path, before: Path, after: Path) -> bool:
    """Whether two folders hold the same model. If there is a checkpoint, its check tells."""
    if before == after or latest(run / CHECKPOINTS) is not None:
        return True
    return before.is_dir() and model_digest(before) == model_digest(after)


def _holds(key: str, flat: Mapping[str, Any]) -> bool:
    """Whether a setting is empty on one side only: the other side's values say what it held."""
    return any(other.startswith(f"{key}.") for other in flat)
