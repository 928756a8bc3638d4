"""The lines of a progress file."""

import math
import random

import pytest

from r3l.run.files.progress_lines import (
    AgainLine,
    ProgressLine,
    StepLine,
    from_json,
    history_of,
    last_steps,
    to_json,
)
from tests.r3l.files.made import evaluation


@pytest.mark.parametrize(
    "line",
    [
        StepLine(3, {"learner/loss": 0.5}),
        StepLine(3, {"learner/loss": 0.5}, unread="'Well'"),
        evaluation(4),
        AgainLine(2, 5),
    ],
)
def test_a_line_is_read_back_as_it_was_written(line: ProgressLine) -> None:
    assert from_json(to_json(line)) == line


def test_a_line_is_flat_so_that_a_table_can_be_made_of_many() -> None:
    assert to_json(StepLine(3, {"learner/loss": 0.5}, 9.0)) == {
        "kind": "step", "step": 3, "time": 9.0, "learner/loss": 0.5,
    }  # fmt: skip
    line = evaluation(4, failed=2, failed_x=1.0)
    assert (line.success, line.tasks, line.failed) == (0.5, 8, 2)
    assert to_json(line)["failed_x"] == 1.0
    nan = from_json(to_json(StepLine(1, {"learner/loss": math.nan})))
    assert isinstance(nan, StepLine) and math.isnan(nan.metrics["learner/loss"])


@pytest.mark.parametrize(
    "change",
    [{"kind": "stop"}, {"kind": []}, {"step": "3"}, {"step": 1.5}, {"learner/loss": "low"},
     {"time": None}, {"unread": 1.0}],
)  # fmt: skip
def test_a_line_with_another_type_in_a_field_is_none(change: dict[str, object]) -> None:
    line = to_json(StepLine(3, {"learner/loss": 0.5}))
    with pytest.raises((LookupError, TypeError, ValueError)):
        from_json(line | change)
    del line["step"]
    with pytest.raises(LookupError, match="step"):
        from_json(line)
    with pytest.raises(ValueError, match="lacks success"):
        from_json({k: v for k, v in to_json(evaluation(1)).items() if k != "success"})


def test_steps_before_which_the_learner_went_back_do_not_count() -> None:
    lines = [StepLine(1), StepLine(2), evaluation(2), StepLine(3), AgainLine(1, 3)]
    history = history_of([*lines, StepLine(2), evaluation(2, 0.6)])
    assert [line.step for line in history.steps] == [1, 2] and history.reached == 2
    assert [line.success for line in history.evaluations] == [0.6]
    without_the_line_that_says_so = [StepLine(1), StepLine(2), StepLine(3), StepLine(2)]
    assert history_of(without_the_line_that_says_so).reached == 2
    assert history_of([]).reached == 0


def test_the_last_steps_are_those_of_the_history_after_any_restarts() -> None:
    chance = random.Random(0)
    for _ in range(300):
        lines, step = list[ProgressLine](), 0
        for _ in range(30):
            if chance.random() < 0.2:
                reached, step = step, chance.randint(0, step)
                if chance.random() < 0.7:
                    lines.append(AgainLine(step, reached))
            step += 1
            lines += [StepLine(step), *([evaluation(step)] if chance.random() < 0.2 else [])]
        assert last_steps(reversed(lines), 5) == history_of(lines).steps[-5:]
    assert last_steps([], 5) == []
