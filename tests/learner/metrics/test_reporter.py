"""The learner's metrics in TensorBoard and in the progress file, over several lives of it."""

import json
import time
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from learner.evaluation import metrics
from learner.evaluation.evaluator import Evaluation
from learner.metrics.loggers.logger import LoggerContext
from learner.metrics.loggers.tensorboard import TensorBoard
from learner.metrics.reporter import Reporter
from r3l.run.config import load
from tests.learner.evaluation.fakes import attempted

TAG = "learner/loss"


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]


def scalars(run: Path, tag: str) -> dict[int, float]:
    """What TensorBoard shows of a tag, by step."""
    shown = EventAccumulator(str(run / "tensorboard")).Reload()
    return {event.step: event.value for event in shown.Scalars(tag)}


def report(run: Path, *steps: int, start: int = 0) -> Reporter:
    """A learner's life. TensorBoard orders files by the second in which they were begun."""
    time.sleep(1.1 if start else 0.0)
    reporter = Reporter(run, start, [TensorBoard(LoggerContext(run, load(), start))])
    for step in steps:
        reporter.step(step, {TAG: step / 2}, {})
    reporter.close()
    return reporter


def test_every_step_is_a_line_of_the_progress_file_and_a_point_in_tensorboard(
    tmp_path: Path,
) -> None:
    report(tmp_path, 1, 2)
    assert [(line["kind"], line["step"], line[TAG]) for line in lines(tmp_path)] == [
        ("step", 1, 0.5),
        ("step", 2, 1.0),
    ]
    assert scalars(tmp_path, TAG) == {1: 0.5, 2: 1.0}


def test_repeated_steps_of_a_resumed_learner_replace_the_earlier_ones(tmp_path: Path) -> None:
    report(tmp_path, 1, 2, 3)
    report(tmp_path, 2, start=1)
    again = lines(tmp_path)[3]
    assert (again["kind"], again["step"], again["reached"]) == ("again", 1, 3)
    assert scalars(tmp_path, TAG) == {1: 0.5, 2: 1.0}


def test_a_resumed_learner_that_lost_no_step_says_nothing_of_it(tmp_path: Path) -> None:
    report(tmp_path, 1, 2)
    report(tmp_path, 3, start=2)
    assert [line["kind"] for line in lines(tmp_path)] == ["step"] * 3


def test_half_a_line_of_a_killed_learner_is_cut_off(tmp_path: Path) -> None:
    report(tmp_path, 1)
    with (tmp_path / "progress.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')
    report(tmp_path, 2, start=1)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_an_evaluation_is_reported_once_over_the_lives_of_a_learner(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, loggers=[TensorBoard(LoggerContext(tmp_path, load()))])
    attempts = [attempted("t0", 0, reward=1.0), attempted("t1", 0, cause="environment_hang")]
    reporter.evaluation(Evaluation(5, attempts, metrics.report(attempts)).line)
    reporter.close()
    (line,) = lines(tmp_path)
    assert (line["kind"], line["step"], line["success"], line["failed"]) == ("eval", 5, 0.5, 1)
    assert scalars(tmp_path, "eval/success") == {5: 0.5}
    assert report(tmp_path, start=5).evaluated == {5}
