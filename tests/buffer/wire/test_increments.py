"""Changes of a record lead to the same bytes, whatever changed."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer.wire.increments import Growing, difference
from r3l import codec
from r3l.errors import RecordError
from tests.buffer.fakes import finished

LEAVES = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats()
    | st.text(max_size=8) | st.binary(max_size=8)
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=20,
)


@given(VALUES, VALUES, VALUES)
@settings(max_examples=200, deadline=None)
def test_any_value_becomes_any_other_one_bit_for_bit(one, two, three):
    forms = [msgspec.msgpack.encode(value) for value in (one, two, three)]
    growing = Growing(forms[0])
    for earlier, later in pairwise(forms):
        growing.add(difference(earlier, later))
        assert growing.encoded() == later


def test_a_change_has_only_what_is_new():
    earlier, later = (codec.encode(finished(length=n, faults=("x",) * n)) for n in (3000, 3100))
    change = difference(earlier, later)
    assert len(change) < 1.2 * (len(later) - len(earlier)) + 200
    growing = Growing(earlier)
    growing.add(change)
    assert growing.encoded() == later


@pytest.mark.parametrize("make", [str, str.encode])
def test_what_ends_differently_keeps_its_beginning(make):
    text = "".join(chr(97 + n * n % 26) for n in range(3000))
    earlier, later = (msgspec.msgpack.encode([make(text + end)]) for end in ("old", "new text"))
    change = difference(earlier, later)
    growing = Growing(earlier)
    growing.add(change)
    assert growing.encoded() == later and len(change) < 40


@pytest.mark.parametrize(
    "change",
    [7, [], [9], [0], [1], [1, 3], [2, {"a": [0, 1]}], [2, []], [3, {5: [0, 1]}, []], [3, {}],
     [3, {}, 3], [3, {0: [1, 5, "text"]}, []], {"a": 1}, [1, 2, "text"], [3, {0: [1, 9, b"x"]}, []],
     [3, {0: [1, -1, b"x"]}, []], [3, {0: [1, "a", b"x"]}, []]],
)  # fmt: skip
def test_a_change_of_another_value_is_refused(change):
    growing = Growing(msgspec.msgpack.encode([b"bytes", {"b": 1}]))
    with pytest.raises(RecordError, match="does not fit its record"):
        growing.add(msgspec.msgpack.encode(change))
