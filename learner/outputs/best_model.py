"""The best model of a run: the weights of each evaluation, of which the most successful are kept.

run/candidates/step-000040 (evaluation under way) ─► run/best (with evaluation.json), or removed
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

from learner.metrics.evaluator import Evaluation
from r3l.process.notices import notice_again

log = logging.getLogger(__name__)
BEST, CANDIDATES = "best", "candidates"


def candidate_folder(run: Path, version: int) -> Path:
    """The weights of an evaluation under way."""
    return run / CANDIDATES / f"step-{version:06d}"


def keep_if_best(run: Path, evaluation: Evaluation) -> None:
    """Move the evaluated weights to `best/` if no earlier evaluation had as much success.

    After a kill at any moment the better weights are in `best/`, or a candidate that a second
    call moves there.
    """
    try:
        _keep_if_best(run, evaluation)
    except OSError as error:
        log.warning("%s: not kept, training goes on (%s)", run / BEST, error)
        notice_again(BEST, f"{run / BEST} could not be written ({error})")


def _keep_if_best(run: Path, evaluation: Evaluation) -> None:
    candidate, best = candidate_folder(run, evaluation.version), run / BEST
    if not candidate.is_dir():
        return
    record = best / "evaluation.json"
    before = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else None
    if before is not None and evaluation.metrics["success"] <= before["success"]:
        shutil.rmtree(candidate)
        return
    values = {"version": evaluation.version, **evaluation.metrics}
    (candidate / record.name).write_text(json.dumps(values) + "\n", encoding="utf-8")
    place = best.resolve()  # `best` may be a link to another disk
    coming, replaced = place.with_name(".coming-best"), place.with_name(".replaced-best")
    for left in (coming, replaced):
        shutil.rmtree(left, ignore_errors=True)
    if candidate.stat().st_dev == place.parent.stat().st_dev:
        coming = candidate
    else:
        shutil.copytree(candidate, coming)
    if place.exists():
        place.rename(replaced)
    coming.rename(place)
    for left in (replaced, candidate):
        shutil.rmtree(left, ignore_errors=True)


def remove_candidates(run: Path) -> None:
    """Remove the weights of evaluations that are no longer awaited."""
    shutil.rmtree(run / CANDIDATES, ignore_errors=True)
