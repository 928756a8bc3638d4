"""Early Experience: the tokens that the environment answered are learned as text."""

import pytest
import torch

from learner.step.batch import collate, rows_of
from r3l.algorithms.losses import TokenBatch, sft
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


def test_the_loss_of_two_attempts_in_literal_numbers(make_trajectory):
    """Two attempts of a response token, two tokens of an observation, and a response token."""
    won, lost = (make_trajectory([1, 1], slot=slot, reward=1.0 - slot) for slot in (0, 1))
    slots = tuple(SlotResult("base", one.slot, "done", trajectory=one) for one in (won, lost))
    group = Group("g", Task("t", "e", 0), GroupPlan(2), "complete", slots)
    settings = EarlyExperienceConfig(group_size=2, std="none", normalize="token", sft_weight=0.3)
    algorithm = settings.build()
    micro = collate(rows_of([group], algorithm), torch.device("cpu"))
    of_won, of_lost = [-0.9, -1.0, -2.0, -1.1], [-1.0, -0.5, -1.5, -0.8]
    columns = torch.zeros(4, 3)  # the prompt has 3 tokens
    logprobs_BT = torch.cat([columns, torch.tensor([of_won, of_lost] * 2)], 1)
    aux_BT = micro.mask_BT & micro.aux_B[:, None]
    policy, _ = algorithm.loss(
        TokenBatch(
            logprobs_BT,
            micro.old_logprobs_BT,
            micro.mask_BT & ~aux_BT,
            micro.advantages_B,
            micro.weights_B,
            micro.distilled_B,
        )
    )
    observations = sft(logprobs_BT, aux_BT, micro.weights_B)
    # Advantages 1/2 and −1/2, log π_old −1: −(0.5·e^0.1 + 0.5·e^−0.1 − 0.5·1 − 0.5·e^0.2)/4. The
    # clip at 1.2 does not cut e^0.2, because its advantage is negative.
    assert policy.item() == pytest.approx(0.026424, abs=1e-6)
    assert observations.item() == pytest.approx((1.0 + 2.0 + 0.5 + 1.5) / 4)
    loss = policy + algorithm.sft_weight * observations
    assert loss.item() == pytest.approx(0.026424 + 0.3 * 1.25, abs=1e-6)
