"""Compiled loops: there at once, kept where that is possible, wherever an array lies."""

import logging
from collections.abc import Callable

import numba
import numpy as np
import pytest

from r3l.weights.numba_loops import compiled, prepare, read, written


def from_nowhere(source: str) -> Callable[..., int]:
    """A function without a file beside which anything could be kept."""
    names: dict[str, Callable[..., int]] = {}
    exec(source, {}, names)
    return names["f"]


def test_a_loop_that_cannot_be_kept_is_compiled_all_the_same_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        f = compiled("int64(int64)")(from_nowhere("def f(x): return x + 1"))
        prepare(f)
    assert f(2) == 3
    assert "f: compiled again at every start" in caplog.text and "NUMBA_CACHE_DIR" in caplog.text


def test_what_cannot_be_compiled_is_found_when_it_is_prepared() -> None:
    with pytest.raises(numba.TypingError):
        prepare(compiled("int64(int64)")(from_nowhere("def f(x): return x.nothing")))


@pytest.mark.parametrize("shift", range(8))
def test_arrays_may_lie_at_any_address_and_be_read_only(shift: int) -> None:
    source = "def f(a, b):\n for i in range(len(a)):\n  b[i] = 3 * a[i]\n return len(a)"
    f = compiled(f"int64({read('uint64')}, {written('uint64')})")(from_nowhere(source))
    data = np.frombuffer(bytes(range(shift, 240)), np.uint8)[: 8 * 25].view(np.uint64)
    out = np.zeros(8 * 26, np.uint8)[shift : 8 * 25 + shift].view(np.uint64)
    assert f(data[1:], out[1:]) == 24
    assert (out[1:] == 3 * data[1:]).all() and out[0] == 0
