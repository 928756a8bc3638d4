"""RAFT imitates full successes."""

from tests.r3l.algorithms.fakes import advantages_of, get


def test_raft_keeps_successes_with_weight_one(group):
    values, keep = advantages_of(get("raft"), group(retry_rewards=()))
    assert values.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert keep.tolist() == [False, True, False, False]


def test_failures_count_in_a_group_that_stored_attempts_joined(group):
    values, keep = advantages_of(get("raft"), group(retry_rewards=()), recalled=1)
    assert values.tolist() == [0.0, 1.0, 0.0, 0.0] and keep.all()
