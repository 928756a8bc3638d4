"""A tape comes back as it was written."""

import os

import pytest
from msgspec.structs import replace

from r3l.errors import RecordError
from r3l.views import tape
from r3l.views.tape import (
    TapedCall,
    call_tree,
    conversations,
    first_difference,
    read_tape,
    write_tape,
)

CALL = TapedCall("chat", "abc", -1, ({"role": "user", "content": "hi"},), {"content": "yes"})


def test_a_tape_comes_back_as_it_was_written() -> None:
    assert read_tape(write_tape([CALL, CALL])) == [CALL, CALL]
    assert read_tape(b"") == []


def test_a_tape_that_is_too_long_keeps_its_calls() -> None:
    """Sixteen tapes of the greatest length fit in a group of 14 MiB."""
    assert 16 * tape.LIMIT < 14 << 20
    long = TapedCall("chat", "abc", -1, ({"content": os.urandom(tape.LIMIT).hex()},))
    assert [call.messages for call in read_tape(write_tape([long]))] == [()]


def test_a_tape_that_is_too_long_keeps_the_policys_messages_before_those_of_other_models() -> None:
    long = ({"content": os.urandom(tape.LIMIT).hex()},)
    for other in (
        replace(CALL, messages=long, model="gpt"),
        replace(CALL, reply=long[0], model="gpt"),
    ):
        own, kept = read_tape(write_tape([CALL, other]))
        assert own == CALL and kept == replace(other, messages=(), reply={})


def test_a_damaged_tape_is_refused() -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        read_tape(b"nonsense")


def test_calls_are_listed_depth_first_and_by_conversation() -> None:
    calls = [replace(CALL, parent=parent) for parent in (-1, 0, 0, 1, -1, 2, 0)]
    assert call_tree(calls) == [(0, 0), (1, 0), (3, 0), (2, 1), (5, 1), (6, 1), (4, 0)]
    assert conversations(calls) == [[0, 1, 3], [4], [0, 2, 5], [0, 6]]
    assert call_tree([]) == conversations([]) == []


def test_the_first_difference_of_two_tapes_is_shown_without_what_may_differ() -> None:
    def tape(*said: str) -> list[TapedCall]:
        return [
            TapedCall(
                "chat", text, n - 1, ({"role": "user", "content": text},), {"role": "assistant"}
            )
            for n, text in enumerate(said)
        ]

    one = tape("at 1", "ls", "a.txt at 2")
    assert first_difference(one, one) == ""
    assert first_difference(one, one[:2]).startswith("call 2: made in only one ")
    other = tape("at 1", "ls", "b.txt at 3")
    shown = "call 2: message 4 has 'user: b.txt at {}' instead of 'user: a.txt at {}'"
    assert first_difference(one, other) == shown.format(3, 2)
    assert first_difference(one, other, [r"\d"]) == shown.format("", "")
