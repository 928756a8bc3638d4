"""Tasks and the checks that records share."""

import pytest

from r3l.errors import RecordError
from r3l.records import Task, check_cause, role_of
from r3l.records.record import TASK_LIMIT, check_numbers


@pytest.mark.parametrize("task_id", ["", "a\0b", "\ud800", "x" * 381, 7])
def test_a_task_without_a_storable_name_is_refused(task_id):
    with pytest.raises(RecordError, match="task"):
        Task(task_id, "workshop", 0)


def test_the_options_of_a_task_are_plain_values_of_a_limited_size():
    assert Task("t", "workshop", 0, {"sizes": (1, 2)}).options == {"sizes": [1, 2]}
    for options in ({"f": print}, {"text": "x" * TASK_LIMIT}):
        with pytest.raises(RecordError, match="options"):
            Task("t", "workshop", 0, options)


def test_an_attempt_that_retries_a_slot_is_distilled():
    assert [role_of(of) for of in (-1, 0, 7)] == ["base", "distilled", "distilled"]


@pytest.mark.parametrize("cause", ["a\x1b[31m", "x" * 81, "\ud800"])
def test_a_cause_is_short_and_printable(cause):
    check_cause("agent_exit")
    with pytest.raises(RecordError, match="cause"):
        check_cause(cause)


def test_numbers_are_few_named_and_finite():
    check_numbers("scores", {f"part{k}": 1.0 for k in range(16)})
    for wrong in ({"a b": 1.0}, {"a": float("inf")}, {f"part{k}": 1.0 for k in range(17)}):
        with pytest.raises(RecordError, match="scores"):
            check_numbers("scores", wrong)
