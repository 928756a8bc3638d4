"""The best model of a run: the weights of each evaluation, of which the most successful are kept.

run/candidates/step-000040 (evaluation under way) ─► run/best (with evaluation.json), or removed
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from learner.evaluate import Evaluation

BEST, CANDIDATES = "best", "candidates"


def candidate_folder(run: Path, version: int) -> Path:
    """The weights of an evaluation under way."""
    return run / CANDIDATES / f"step-{version:06d}"


def keep_if_best(run: Path, evaluation: Evaluation) -> None:
    """Move the evaluated weights to `best/` if no earlier evaluation had as much success.

    After a kill at any moment the better weights are in `best/`, or a candidate that a second
    call moves there.
    """
    candidate, best = candidate_folder(run, evaluation.version), run / BEST
    if not candidate.is_dir():
        return
    record = best / "evaluation.json"
    before = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else None
    if before is not None and evaluation.success <= before["success"]:
        shutil.rmtree(candidate)
        return
    (candidate / record.name).write_text(json.dumps(asdict(evaluation)) + "\n", encoding="utf-8")
    replaced = candidate.with_name("replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if best.exists():
        best.rename(replaced)
    candidate.rename(best)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_candidates(run: Path) -> None:
    """Remove the weights of evaluations that are no longer awaited."""
    shutil.rmtree(run / CANDIDATES, ignore_errors=True)
