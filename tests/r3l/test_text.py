"""What text from outside may hold."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3l.codec import RECORD_LIMIT, decode, encode, pack, unpack
from r3l.errors import EnvironmentFailed, RecordError, from_wire, to_wire
from r3l.records import TASK_ID_LIMIT, SlotResult, Task
from r3l.text import (
    LABEL_LIMIT,
    encodable,
    label,
    plain,
    plain_value,
    printable,
    shorten,
    size_text,
    time_span,
)
from tests.r3l.hostile import HALF, TEXTS, VALUES


@given(VALUES)
def test_a_plain_value_can_be_sent_and_anything_else_is_refused_by_name(value):
    try:
        taken = plain_value(value, "this one")
    except ValueError as error:
        assert str(error).startswith("this one ")
    else:
        back = unpack(pack({"value": taken}, RECORD_LIMIT), RECORD_LIMIT)["value"]
        assert repr(back) == repr(taken)


@given(TEXTS, TEXTS, st.dictionaries(TEXTS, VALUES, max_size=2))
def test_a_task_can_be_stored_or_is_refused_by_name(task_id, env, options):
    try:
        task = Task(task_id, env, 0, options)
    except RecordError as error:
        assert str(error).startswith("task ")
        str(error).encode()
    else:
        assert repr(decode(Task, encode(task))) == repr(task)
        assert 0 < len(task.task_id.encode()) <= TASK_ID_LIMIT and "\0" not in task.task_id


def test_the_limit_of_a_task_is_in_bytes():
    with pytest.raises(RecordError, match=r"id has 570 bytes; .* 380"):
        Task("題" * 190, "math", 0)
    with pytest.raises(RecordError, match="task 'big': options have 1200"):
        Task("big", "math", 0, {"prompt": "題" * 400_000})


@given(TEXTS)
def test_a_cause_is_a_short_label_whatever_was_raised(text):
    error = from_wire(unpack(pack(to_wire(EnvironmentFailed(text, cause=text, traceback=text)))))
    assert len(error.cause.encode()) <= LABEL_LIMIT and "\0" not in error.cause
    if error.cause:
        SlotResult(0, "failed", cause=error.cause)
    with pytest.raises(RecordError, match="80 bytes of printable text"):
        SlotResult(0, "failed", cause=f"{text}\0")


@given(TEXTS)
def test_what_is_printed_moves_no_cursor_and_hides_nothing(text):
    shown = printable(text)
    shown.encode()
    assert printable(shown) == shown
    assert not set(shown) & set("\x1b\x07\r\x08\x9b\u202e\u2066\u2028\0" + HALF)


def test_what_people_write_is_printed_as_it_is():
    text = "Ünïcode 題, 👩\u200d👩\u200d👧, אב, non\xa0breaking,\n\ttabs"
    assert printable(text) == text
    assert printable("\x1b[31mred\r\U000e0041") == r"\x1b[31mred\r\U000e0041"


def test_text_is_a_str_itself():
    assert type(plain(np.str_("a"), "it")) is str
    with pytest.raises(ValueError, match="it is bytes; "):
        plain(b"a", "it")
    with pytest.raises(ValueError, match=r"it .*surrogate.* '.ud83d'"):
        plain(json.loads(r'"a \ud83d"'), "it")
    assert encodable(f"a{HALF}") == "a?"
    assert shorten("題題", 4) == "題" and label("a\nb") == "a b"


def test_time_spans_in_words():
    shown = [time_span(seconds) for seconds in (0.04, 59.0, 90.0, 7200.0)]
    assert shown == ["0.0 s", "59.0 s", "1.5 min", "2.0 h"]


def test_sizes_are_short():
    sizes = {5: "5 B", 942e6: "942 MB", 15.2e9: "15.2 GB", 1.4e12: "1.4 TB"}
    assert {size: size_text(size) for size in sizes} == sizes
