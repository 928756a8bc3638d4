"""Keeps the best model of a run: the evaluated weights with the most success.

run/candidates/step-000040 (evaluation under way) ─► run/best (with evaluation.json), or removed
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from learner.evaluator import Evaluation
from r3l.errors import UserError
from r3l.files.progress_lines import EvalLine
from r3l.files.run_folder import BEST, RunFolder, write_evaluation
from r3l.files.whole_file import rename_whole
from r3l.process.notices import notice_again

log = logging.getLogger(__name__)
CANDIDATES = "candidates"


def candidate_folder(run: Path, version: int) -> Path:
    """The folder of the weights that an evaluation plays."""
    return run / CANDIDATES / f"step-{version:06d}"


def keep_if_best(run: Path, evaluation: Evaluation) -> None:
    """Moves the evaluated weights to `best/` if no earlier evaluation had as much success.

    After a kill at any moment the better weights are in `best/`, or a second call moves them there.
    """
    try:
        _keep_if_best(run, evaluation)
    except (OSError, UserError) as error:
        log.warning("%s: not replaced, training continues (%s)", run / BEST, error)
        notice_again(BEST, f"{run / BEST} was not replaced ({error})")


def _keep_if_best(run: Path, evaluation: Evaluation) -> None:
    candidate, best = candidate_folder(run, evaluation.version), run / BEST
    if not candidate.is_dir():
        return
    before = RunFolder(run).best_evaluation()
    line = EvalLine(evaluation.version, evaluation.metrics)
    if before is not None and line.success <= before.success:
        shutil.rmtree(candidate)
        return
    write_evaluation(candidate, line)
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
    rename_whole(coming, place)
    for left in (replaced, candidate):
        shutil.rmtree(left, ignore_errors=True)


def remove_candidates(run: Path) -> None:
    """Removes the weights of evaluations whose results are in."""
    shutil.rmtree(run / CANDIDATES, ignore_errors=True)
