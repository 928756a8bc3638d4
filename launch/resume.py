"""Checks of a run that is resumed: what has changed, what may not change, what is left to do.

config.yaml ──(resume with other settings)──► config.next.yaml, which every process reads
     │                                              │ the first step that is made with them
     └─► config.before-step-000051.yaml             └─► config.yaml
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.builtin.policy import model_path
from learner.checkpoint import CHECKPOINTS, latest, read_state
from learner.run_files import PROGRESS
from r3l import config as configuration
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.model_folder import fingerprint

CONFIG, NEXT = "config.yaml", "config.next.yaml"
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


def config_file(run: Path) -> Path:
    """The configuration that the processes of a run read now."""
    coming = run / NEXT
    return coming if coming.exists() else run / CONFIG


def changed_settings(run: Path, config: RunConfig, *, force: bool) -> tuple[str, ...]:
    """A line for each setting that differs from the run's own. Raises UserError for one of FIXED,
    unless `force`."""
    known = configuration.load(run / CONFIG)
    before, after = (_flat(one.model_dump(mode="json")) for one in (known, config))
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
    newest = latest(run / CHECKPOINTS) if (run / CONFIG).exists() else None
    done = read_state(newest).version if newest else 0
    steps = config.learner.steps
    finished = (run / "model" / "config.json").is_file() and (
        not config.eval.tasks or done in {line["step"] for line in reported(run, "eval")}
    )
    if done < steps or (done == steps and not finished):
        return ""
    have = f"all {steps} steps are done" if done == steps else f"{done} steps are done already"
    return (
        f"run {run}: {have}, there is nothing to do; for more: "
        f"--resume --steps {done + max(done, 1)}; the model: {run / 'model'}"
    )


def reported(run: Path, kind: str) -> list[dict[str, Any]]:
    """The steps or evaluations that a run has reported, in their order."""
    file = run / PROGRESS
    whole = file.read_bytes().rpartition(b"\n")[0] if file.exists() else b""
    lines = [json.loads(line) for line in whole.splitlines()]
    return [line for line in lines if line["kind"] == kind]


def write_config(run: Path, config: RunConfig) -> None:
    """Write the configuration that the processes of a run read; an earlier one stays until the
    first step is made with this one."""
    text, own = configuration.dump(config), run / CONFIG
    (run / NEXT).unlink(missing_ok=True)
    if not own.exists():
        own.write_text(text, encoding="utf-8")
    elif configuration.load(own) != config:
        (run / NEXT).write_text(text, encoding="utf-8")


def settle_config(run: Path, step: int) -> None:
    """A step is made: its settings become the run's own, and those before it are kept."""
    coming, own = run / NEXT, run / CONFIG
    if not coming.exists() or coming.read_bytes() == own.read_bytes():
        return
    shutil.copyfile(own, run / f"config.before-step-{step:06d}.yaml")
    building = run / ".config.yaml"
    shutil.copyfile(coming, building)  # a process that was just started may be about to read it
    building.replace(own)


def drop_next_config(run: Path) -> None:
    """The run has ended. Settings with which no step was made are forgotten."""
    (run / NEXT).unlink(missing_ok=True)


def _same_model(run: Path, before: Path, after: Path) -> bool:
    """Whether two folders hold the same model. If there is a checkpoint, its check tells."""
    if before == after or latest(run / CHECKPOINTS) is not None:
        return True
    return before.is_dir() and fingerprint(before) == fingerprint(after)


def _holds(key: str, flat: Mapping[str, Any]) -> bool:
    """Whether a setting is empty on one side only: the other side's values say what it held."""
    return any(other.startswith(f"{key}.") for other in flat)


def _flat(values: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Nested settings by section.key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{start}{key}.")
        else:
            flat[f"{start}{key}"] = value
    return flat
