"""Records that are cut into frames and parts come together again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.wire import parts
from r3l.errors import RecordError


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_cut_records_are_joined_again_and_no_frame_is_too_large(records):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parts, "FRAME_BYTES", 8)
        counts, frames = parts.frames_of(records)
    assert all(0 < len(frame) <= 8 for frame in frames)
    assert [bytes(each) for each in parts.joined(counts, frames)] == records


def test_a_part_has_at_least_one_record_and_ends_when_it_is_full(monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 10)
    assert parts.take([b"x" * 99, b"y"]) == [b"x" * 99]
    assert parts.take([b"1234", b"5678", b"90", b"more"]) == [b"1234", b"5678", b"90"]
    assert parts.take([]) == []


def test_frames_that_are_missing_or_too_many_are_refused():
    with pytest.raises(RecordError, match="has 1 frames but announces 2"):
        parts.joined((1, 1), [b"x"])
