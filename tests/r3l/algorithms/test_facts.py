"""What the service tells an algorithm."""

from msgspec.structs import replace

from r3l.algorithms.facts import GroupFacts, StoredAttempt, attempts_of
from r3l.records import GroupPlan
from tests.r3l.algorithms.fakes import facts_of, group_of, stored


def test_an_attempt_is_a_success_from_a_reward_of_1_on():
    assert [stored("g", r).success for r in (0.0, 0.99, 1.0, 1.5)] == [False, False, True, True]
    assert stored("g", 1.0).of == -1


def test_a_group_is_described_by_a_value_for_each_attempt():
    assert facts_of((0.0, 1.0)) == GroupFacts("t", (0.0, 1.0), (-1, -1), 0, "")


def test_a_stored_group_is_described_without_its_tokens(make_trajectory):
    attempts = [
        make_trajectory(slot=0, reward=0.0),
        make_trajectory(slot=3, of=0, pivot=1, reward=1.0),
    ]
    group = group_of(attempts)
    assert list(attempts_of(group)) == [
        StoredAttempt("g", 0, 0.0, 0, -1),
        StoredAttempt("g", 3, 1.0, 0, 0),
    ]
    kinds = [each.kind for each in attempts_of(replace(group, plan=GroupPlan(4, "guided 1")))]
    assert kinds == ["guided 1"] * 2
    assert GroupFacts.of_group(group, version=5) == GroupFacts("t", [0.0, 1.0], [-1, 0], 5, "")
