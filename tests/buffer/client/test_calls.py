"""Calls: what a request holds."""

import pytest

from r3l import codec
from r3l.errors import RecordError
from r3l.records import ReflectionRecord, SlotResult
from tests.buffer.fakes import calls, thought


def test_a_request_larger_than_the_limit_is_never_sent(done):
    with pytest.raises(RecordError, match="limit"):
        calls.put("g", "a", done(length=3 << 20))


def test_results_and_reflections_are_put_in_one_request(done):
    put = calls.put("g", "a", [thought(), done(1), thought("other")]).arguments
    assert [codec.decode(ReflectionRecord, r).name for r in put.reflections] == [
        "reflect-0",
        "other",
    ]
    assert [codec.decode(SlotResult, r).slot for r in put.results] == [1]
    assert len(calls.put("g", "a", thought()).arguments.reflections) == 1
