"""The learner's progress file, read as it grows and shown as one line per step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class ProgressReader:
    """A reader of a growing JSON-lines file that returns each complete line once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = path.stat().st_size if path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """Lines written since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._at)
            whole, _, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + bool(whole)
        return [json.loads(line) for line in whole.splitlines()]


def step_line(values: dict[str, Any], steps: int) -> str:
    """One line about an optimizer step."""

    def share(name: str) -> str:
        return f"{values[name]:.2f}" if name in values else "  – "

    learner, actors = values.get("learner/idle_share", 0.0), values.get("actor/idle_share", 0.0)
    age, oldest = values.get("staleness/mean", 0.0), values.get("staleness/max", 0.0)
    waits = f"learner waits {learner:.0%}" if learner >= actors else f"actors wait {actors:.0%}"
    return (
        f"step {values['step']:>{len(str(steps))}}/{steps}  reward {share('group/reward_mean')}  "
        f"success base {share('group/success_base')} retry {share('group/success_retry')}  "
        f"trigger {share('group/trigger_rate')}  "
        f"staleness {age:.1f} max {oldest:.0f}  "
        f"{values.get('actor/tokens_per_s', 0):.0f} tok/s  {waits}"
    )


def eval_line(values: dict[str, Any]) -> str:
    """One line about an evaluation."""
    failed = f", {values['failed']} failed" if values["failed"] else ""
    return (
        f"eval at step {values['step']}: success {values['success']:.2f}  "
        f"reward {values['reward']:.2f}  steps {values['steps']:.1f}  "
        f"({values['tasks']} tasks{failed})"
    )
