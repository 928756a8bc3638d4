"""What the service tells an algorithm."""

from r3l.algorithms.facts import GroupFacts
from tests.r3l.algorithms.fakes import facts_of, stored


def test_an_attempt_is_a_success_from_a_reward_of_1_on():
    assert [stored("g", r).success for r in (0.0, 0.99, 1.0, 1.5)] == [False, False, True, True]
    assert stored("g", 1.0).of == -1


def test_a_group_is_described_by_a_value_for_each_attempt():
    assert facts_of((0.0, 1.0)) == GroupFacts("t", (0.0, 1.0), (-1, -1), 0, "")
