"""Keys of queries: one for each conversation of each attempt of a batch."""

from r3l.algorithms.batch import Batch
from r3l.algorithms.queries import key_of
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
