"""What a run's folder says about its past: its settings, steps and evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from launch.plan import run_folder
from launch.resume import config_file
from learner.run_files import PROGRESS
from r3l import config as configuration
from r3l.config import RunConfig
from r3l.errors import UserError

Line = dict[str, Any]


def existing_run(name: str) -> Path:
    """The folder of a run that was started. Raises UserError."""
    run = run_folder(name)
    if not (run / "config.yaml").is_file():
        raise UserError(
            f"run {run}: has no config.yaml, so no run was started there; check the name"
        )
    return run


def settings(run: Path) -> RunConfig:
    """The configuration that the run's processes read. Raises UserError."""
    return configuration.load(config_file(run))


def read_progress(run: Path) -> tuple[list[Line], list[Line]]:
    """(steps, evaluations) that count, in order; a learner that went back to a checkpoint made
    later steps void. A line that a killed learner left half is left out."""
    path = run / PROGRESS
    steps: list[Line] = []
    evaluations: dict[int, Line] = {}
    whole = path.read_bytes().rpartition(b"\n")[0] if path.is_file() else b""
    for text in whole.splitlines():
        line = json.loads(text)
        if line["kind"] == "again":
            steps = [one for one in steps if one["step"] <= line["step"]]
        elif line["kind"] == "step":
            steps.append(line)
        else:
            evaluations[line["step"]] = line
    return steps, [evaluations[step] for step in sorted(evaluations)]
