"""What guidance brings, by a run's lines, and how much retries rely on it, by its ledger."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean, median

from buffer.storage.store import Store
from buffer.storage.store_path import has_store
from buffer.storage.stored_rows import TrainedAttempt
from launch.inspection.learning import Reason
from r3l.errors import R3LError
from r3l.run.files.progress_lines import StepLine

GAIN_STEPS = 20
STEPS = 20
"""How many of the newest optimizer steps are read."""
FEWEST = 10
"""The lowest tenth is reported only if there are at least this many retries."""


def guidance(steps: Sequence[StepLine]) -> Reason | None:
    """Reports the mean guidance gain (r3l.algorithms.guidance_gain) of the last GAIN_STEPS steps
    that measured a gain. Returns None if there are no such steps. Gives a remedy if guidance
    clearly does harm and the run has no gate."""
    tag = "group/guidance_gain"
    known = [step.metrics for step in steps if tag in step.metrics][-GAIN_STEPS:]
    if not known:
        return None
    slots = [metrics.get("group/guidance_slots", 1.0) for metrics in known]  # 1: of an older r3l
    gain = fmean((metrics[tag] for metrics in known), weights=slots)
    errors = [n * metrics[f"{tag}_se"] for n, metrics in zip(slots, known, strict=True)]
    error = math.hypot(*errors) / sum(slots)
    gated = "group/without_retries" in steps[-1].metrics
    harms = gain < -error < 0 and not gated
    remedy = "algorithm.gate=measured leaves retries out of most groups" if harms else ""
    over = f"over another attempt{reliance(steps)}"
    if not error:  # of a single group, or of equal ones
        return Reason(f"guidance gain: {gain:+.2f} {over}", remedy)
    said = f"{error:.2f} {over}"
    return Reason(f"guidance gain: {gain:+.2f} ± {said}", remedy)


def reliance(steps: Sequence[StepLine]) -> str:
    """Returns the end of a line: the mean reliance of retries on their guidance
    (r3l.algorithms.shared.reliance), over the last GAIN_STEPS steps that trained retries. Returns
    "" if there are none."""
    tag = "learner/reliance"
    known = [step.metrics[tag] for step in steps if tag in step.metrics][-GAIN_STEPS:]
    return f"; reliance {fmean(known):+.2f} nats a token" if known else ""


def reliance_of_retries(store: Path) -> str:
    """Returns a sentence about the reliance (r3l.algorithms.shared.reliance) of the retries that
    the newest STEPS steps trained on. It names the retry that relied most on its guidance. Returns
    "" if there is no such retry, or if the store cannot be read (`doctor` reports that
    elsewhere)."""
    if not has_store(store):
        return ""
    try:
        with Store(store, read_only=True) as opened, opened.read() as txn:
            attempts = [one for row in islice(txn.steps(backwards=True), STEPS)
                        for one in row.attempts]  # fmt: skip
    except R3LError:
        return ""
    return _said(list(_known(attempts)))


def _known(attempts: Sequence[TrainedAttempt]) -> Iterator[tuple[float, TrainedAttempt]]:
    return ((one.reliance, one) for one in attempts if one.reliance is not None)


def _said(known: Sequence[tuple[float, TrainedAttempt]]) -> str:
    if not known:
        return ""
    values = sorted(value for value, _ in known)
    lowest, most = min(known, key=lambda pair: pair[0])
    tenth = ""
    if len(values) >= FEWEST:
        tenth = f", a tenth below {values[len(values) // 10]:+.2f}"
    return (
        f"reliance of the {len(values)} retries that were trained last: median "
        f"{median(values):+.2f} nats a token{tenth}, the lowest {lowest:+.2f}: group "
        f"{most.group_id} slot {most.slot}"
    )
