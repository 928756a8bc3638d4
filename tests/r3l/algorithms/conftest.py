"""A group of attempts and a batch of its tokens as fixtures; helpers are in fakes.py."""

import pytest
import torch

from r3l.algorithms import losses


@pytest.fixture
def group(make_trajectory):
    """Four attempts, of which 0 and 2 were done again from step 1."""

    def make(base_rewards=(0.0, 1.0, 0.5, 0.0), retry_rewards=((0, 1.0), (2, 0.25))):
        bases = [make_trajectory(slot=i, reward=r) for i, r in enumerate(base_rewards)]
        retries = [
            make_trajectory(slot=len(bases) + n, reward=r, of=i, pivot=1)
            for n, (i, r) in enumerate(retry_rewards)
        ]
        return bases + retries

    return make


@pytest.fixture
def batch():
    draw = torch.Generator().manual_seed(0)

    def logprobs():
        return -3 * torch.rand(4, 5, generator=draw, dtype=torch.float64) - 0.01

    def column(*values):
        return torch.tensor(values, dtype=torch.float64)[:, None].expand(4, 5)

    return losses.TokenBatch(
        logprobs_BT=logprobs().requires_grad_(True),
        old_logprobs_BT=logprobs(),
        mask_BT=torch.rand(4, 5, generator=draw) < 0.7,
        advantages_BT=column(3.0, -0.5, 0.0, 1.0),
        weights_BT=column(0.1, 0.2, 0.3, 0.4),
        distilled_B=torch.tensor([False, False, True, True]),
        unmeasured_B=torch.tensor([False, False, False, True]),
        reference_BT=logprobs(),
    )
