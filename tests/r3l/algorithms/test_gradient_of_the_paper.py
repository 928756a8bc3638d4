"""The gradient of R³L's whole loss on a tiny model, against the paper written out per token.

The model is a one-layer causal attention with its own positions, float64. The transcription
runs every trajectory alone and unpadded, and sums −Â·log π token by token.
"""

import numpy as np
import pytest
import torch

from r3l.algorithms import losses
from r3l.algorithms.credit import token_weights
from r3l.algorithms.r3l import R3L
from tests.r3l.algorithms.fakes import advantages_of, loss_of

VOCAB, WIDTH, ALPHA, LAMBDA = 11, 6, 3.0, 0.5


class TinyModel(torch.nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        shapes = {"embed": (VOCAB, WIDTH), "position": (32, WIDTH), "out": (WIDTH, VOCAB)}
        shapes |= dict.fromkeys(("query", "key", "value"), (WIDTH, WIDTH))
        for name, shape in shapes.items():
            weight = torch.randn(shape, generator=draw, dtype=torch.float64) * 0.5
            self.register_parameter(name, torch.nn.Parameter(weight))

    def forward(self, ids_BT):
        length = ids_BT.shape[1]
        x_BTD = self.embed[ids_BT] + self.position[:length]
        scores_BTT = (x_BTD @ self.query) @ (x_BTD @ self.key).transpose(1, 2)
        future_TT = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights_BTT = scores_BTT.masked_fill(future_TT, -torch.inf).softmax(-1)
        return torch.tanh(x_BTD + weights_BTT @ (x_BTD @ self.value)) @ self.out


def a_group(make_trajectory):
    """Two attempts, one done again from step 1, with their rewards and pivots by hand."""
    rng = np.random.default_rng(5)
    prefix = rng.integers(0, VOCAB, 7)  # prompt 3, step 0 of 2, observation 2
    first = make_trajectory([2, 3], reward=0.25, tokens=[*prefix, *rng.integers(0, VOCAB, 3)])
    retry = make_trajectory(
        [2, 1, 2],
        reward=1.0,
        slot=2,
        of=0,
        pivot=1,
        tokens=[*prefix, *rng.integers(0, VOCAB, 5)],
    )
    second = make_trajectory([4], reward=0.5, slot=1, tokens=rng.integers(0, VOCAB, 7))
    return [first, second, retry]


def paper_loss(model, group, pivots):
    """Amplification and objective, one trajectory and one token at a time."""
    rewards = [one.reward for one in group]
    mean = sum(rewards) / len(rewards)
    total = 0.0
    for one, pivot in zip(group, pivots, strict=True):
        s = one.reward - mean
        weight = ALPHA if one.reward >= 1 else ALPHA * s if s >= 0 else s
        logits = model(torch.tensor(one.token_ids[None].astype(np.int64)))[0]
        kept = [t for a, b in one.step_spans[pivot:] for t in range(a, b)]
        for t in kept:
            logprob = torch.log_softmax(logits[t - 1], -1)[int(one.token_ids[t])]
            total = total - weight * logprob / len(kept)
    return total / len(group)


def padded(group, masks):
    length = max(len(one.token_ids) for one in group)
    ids = torch.zeros(len(group), length, dtype=torch.long)
    mask_BT = torch.zeros(len(group), length, dtype=torch.bool)
    for row, (one, mask) in enumerate(zip(group, masks, strict=True)):
        ids[row, : len(mask)] = torch.tensor(one.token_ids.astype(np.int64))
        mask_BT[row, : len(mask)] = torch.tensor(mask)
    return ids, mask_BT


def logprobs_of(model, ids):
    """(log-probabilities [B, T] with 0 at position 0, logits [B, T, V])."""
    logits = model(ids)
    logits.retain_grad()
    picked = torch.log_softmax(logits[:, :-1], -1).gather(2, ids[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(picked, (1, 0)), logits


def r3l_loss(model, group, rows=slice(None)):
    algorithm = R3L(alpha=ALPHA, sft_weight=LAMBDA)
    advantages, keep = advantages_of(algorithm, group)
    assert keep.all()
    ids, mask_BT = padded(group, algorithm.masks(group))
    logprobs, logits = logprobs_of(model, ids[rows])
    weights = token_weights(algorithm.normalize, mask_BT.sum(dim=1).tolist())
    batch = losses.TokenBatch(
        logprobs,
        torch.full_like(logprobs, torch.nan),  # R³L is blind to the sampler
        mask_BT[rows],
        torch.tensor(advantages)[rows, None].expand_as(logprobs),
        torch.tensor(weights, dtype=torch.float64)[rows, None].expand_as(logprobs),
        torch.tensor([one.of >= 0 for one in group])[rows],
    )
    value, _ = loss_of(algorithm, batch)
    return value, logits, mask_BT[rows]


def gradient(value, model):
    parts = torch.autograd.grad(value, list(model.parameters()))
    return torch.cat([part.ravel() for part in parts])


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


PIVOTS = [1, 0, 1]  # of first, second, retry


def test_the_gradient_is_that_of_the_paper(make_trajectory):
    model, group = TinyModel(), a_group(make_trajectory)
    want = gradient(paper_loss(model, group, PIVOTS), model)
    assert want.norm() > 1e-3
    assert relative(gradient(r3l_loss(model, group)[0], model), want) < 1e-12


def test_the_gradient_is_the_slope_of_the_papers_loss(make_trajectory):
    model, group = TinyModel(1), a_group(make_trajectory)
    grad = gradient(r3l_loss(model, group)[0], model)
    ahead = torch.randn(grad.shape, generator=torch.Generator().manual_seed(2)).double()
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    def at(step):
        torch.nn.utils.vector_to_parameters(weights + step * ahead, model.parameters())
        with torch.no_grad():
            return paper_loss(model, group, PIVOTS).item()

    h = 1e-3  # fourth-order differences
    slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    assert slope == pytest.approx((grad @ ahead).item(), rel=1e-6)


def test_every_token_before_the_pivot_contributes_exactly_nothing(make_trajectory):
    model, group = TinyModel(), a_group(make_trajectory)
    value, logits, mask_BT = r3l_loss(model, group)
    value.backward()
    trained = torch.zeros_like(mask_BT)
    trained[:, :-1] = mask_BT[:, 1:]  # logits at t predict token t + 1
    assert (logits.grad[~trained] == 0.0).all()
    assert (logits.grad[trained].abs().sum(-1) > 0).all()
    shared = group[0].step_spans[1, 0]
    assert not mask_BT[[0, 2], :shared].any()


def test_micro_batches_accumulate_the_same_gradient(make_trajectory):
    model, group = TinyModel(), a_group(make_trajectory)
    want = gradient(r3l_loss(model, group)[0], model)
    parts = [gradient(r3l_loss(model, group, [row])[0], model) for row in range(len(group))]
    assert relative(sum(parts), want) < 1e-12


def test_the_auxiliary_loss_is_the_mean_token_nll(make_trajectory):
    model, group = TinyModel(), a_group(make_trajectory)[:2]
    ids, mask_BT = padded(group, [one.response_mask for one in group])
    logprobs, _ = logprobs_of(model, ids)
    total, count = 0.0, 0
    for one in group:
        logits = model(torch.tensor(one.token_ids[None].astype(np.int64)))[0]
        for t in np.flatnonzero(one.response_mask):
            total = total - torch.log_softmax(logits[t - 1], -1)[int(one.token_ids[t])]
            count += 1
    want = gradient(LAMBDA * total / count, model)
    none = torch.zeros_like(logprobs)
    weights = torch.full_like(logprobs, 1 / count)
    batch = losses.TokenBatch(
        logprobs, none, mask_BT, none, weights, none[:, 0] > 0, losses=("sft",) * len(group)
    )
    value, _ = loss_of(R3L(sft_weight=LAMBDA), batch)
    assert relative(gradient(value, model), want) < 1e-12
