"""Early Experience: the tokens that the environment answered are learned as text."""

from learner.step.batch import rows_of
from r3l.algorithms.published.early_experience import EarlyExperienceConfig, next_observations
from r3l.records import Group, GroupPlan, SlotResult, Task


def test_what_the_environment_answered_is_trained_next_to_the_attempts(make_trajectory):
    won = make_trajectory([2, 1], slot=0, reward=1.0)
    lost = make_trajectory([3], slot=1, reward=0.0)
    slots = tuple(SlotResult("base", one.slot, "done", trajectory=one) for one in (won, lost))
    group = Group("g", Task("t", "e", 0), GroupPlan(2), "complete", slots)
    samples = next_observations(group)
    for sample, one in zip(samples, (won, lost), strict=True):
        first = one.step_spans[0, 0]
        assert not (sample.response_mask & one.response_mask).any()
        assert not sample.response_mask[:first].any()
        assert (sample.response_mask | one.response_mask)[first:].all()
    rows = rows_of([group], EarlyExperienceConfig(group_size=2).build())
    aux = [row for row in rows if row.aux]
    tokens = sum(int(sample.response_mask.sum()) for sample in samples)
    assert {row.weight for row in aux} == {1 / tokens}
    assert sum(int(row.mask.sum()) for row in aux) == tokens
    plain = rows_of([group], EarlyExperienceConfig(group_size=2, sft_weight=0).build())
    assert [row.aux for row in plain] == [False, False]
