"""Hostile values for every edge that text comes in by."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

HALF = "\ud83d"
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.sampled_from(
        [HALF, "a\u2028b\u0085c", "\0", "\x1b]0;owned\x07", "\u202egnp", "\ufeff", "題" * 190, ""]
    ),
    st.text("題\ud83d\x00", min_size=100, max_size=400),
    st.text("ab").map(np.str_),
)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.floats(width=32).map(np.float32),
    st.integers(0, 99).map(np.int64),
    st.booleans().map(np.bool_),
)
VALUES: Any = st.recursive(
    st.one_of(TEXTS, NUMBERS, st.none(), st.binary(max_size=9), st.just(object())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(TEXTS, st.integers()), inner, max_size=3),
    ),
    max_leaves=6,
)
