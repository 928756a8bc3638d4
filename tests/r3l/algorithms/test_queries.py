"""Keys of queries: one for each conversation of each attempt of a batch."""

import pytest

from r3l.algorithms.batch import Batch
from r3l.algorithms.queries import answer_of, key_of
from r3l.errors import UserError
from r3l.records import Recalled
from tests.r3l.algorithms.fakes import group_of


def test_no_two_conversations_of_a_batch_have_one_key(make_trajectory):
    groups = [
        group_of([make_trajectory(slot=i) for i in range(2)], name=name) for name in ("a", "b")
    ]
    joins = [Recalled(into, "g9", make_trajectory(slot=0)) for into in ("a", "b")]
    batch = Batch(groups, recalled=joins)
    keys = [
        key_of(what, source, conversation)
        for what in ("reference", "entropy")
        for group in groups
        for source in batch.sources(group)
        for conversation in range(2)
    ]
    assert len(keys) == len(set(keys)) == 2 * 6 * 2


def test_an_answer_that_was_not_asked_for_is_named():
    batch = Batch([]).with_answers({"known": 1})
    assert answer_of(batch, "known") == 1
    with pytest.raises(UserError, match=r"call batch = trainer\.answer\(batch, algorithm\.queries"):
        answer_of(batch, "other")
