"""Drift metrics against a slow transcription."""

import math

import pytest
import torch

from r3l.algorithms.rows import Retry
from r3l.training.measures.drift import (
    clipped_share,
    drift_metrics,
    drift_sums,
    engine_metrics,
    reliance_metrics,
    reliance_of_retries,
    reliance_sums,
)


def test_drift_metrics_follow_their_definitions_for_every_role() -> None:
    generator = torch.Generator().manual_seed(0)
    new, old, entropy = (torch.rand(4, 6, generator=generator) - 1 for _ in range(3))
    mask = torch.rand(4, 6, generator=generator) < 0.6
    distilled = mask & torch.tensor([[True], [False], [True], [False]])
    roles = {"all": mask, "base": mask & ~distilled, "distilled": distilled}
    halves = [
        drift_sums(new[half], old[half], entropy[half], {r: m[half] for r, m in roles.items()})
        for half in (slice(0, 2), slice(2, 4))
    ]
    metrics = drift_metrics({k: halves[0][k] + halves[1][k] for k in halves[0]})
    for role, selected in roles.items():
        end = "" if role == "all" else f"_{role}"
        pairs = [
            (float(new[i, j]), float(old[i, j]), float(entropy[i, j]))
            for i, j in selected.nonzero().tolist()
        ]
        weights = [math.exp(a - b) for a, b, _ in pairs]
        kl = sum(w - 1 - (a - b) for w, (a, b, _) in zip(weights, pairs, strict=True))
        ess = sum(weights) ** 2 / sum(w * w for w in weights)
        assert metrics[f"behaviour_kl{end}"] == pytest.approx(kl / len(pairs), rel=1e-4)
        assert metrics[f"behaviour_ess{end}"] == pytest.approx(ess / len(pairs), rel=1e-4)
        mean = sum(e for *_, e in pairs) / len(pairs)
        assert metrics[f"entropy{end}"] == pytest.approx(mean, rel=1e-4)


def test_engine_and_learner_are_compared_on_the_marked_tokens_alone() -> None:
    new = torch.tensor([[-1.0, -2.0, -0.5], [-3.0, -1.0, -1.0]])
    old = torch.tensor([[-1.1, -9.0, -0.5], [-2.8, -1.0, 0.0]])
    fresh = torch.tensor([[True, False, True], [True, False, False]])
    entropy = torch.ones(2, 3)
    halves = [
        drift_sums(new[half], old[half], entropy[half], {"fresh": fresh[half]})
        for half in (slice(1), slice(1, 2))
    ]
    metrics = engine_metrics({name: halves[0][name] + halves[1][name] for name in halves[0]})
    kl = (math.exp(0.1) - 1 - 0.1) + (math.exp(-0.2) - 1 + 0.2)
    assert metrics["engine_tokens"] == 3.0
    assert metrics["engine_gap"] == pytest.approx((0.1 + 0.0 + 0.2) / 3, rel=1e-4)
    assert metrics["engine_kl"] == pytest.approx(kl / 3, rel=1e-4)
    none = drift_sums(new, old, entropy, {"fresh": ~fresh & fresh})
    assert engine_metrics(none) == {"engine_tokens": 0.0}


def test_reliance_is_a_mean_over_retries_of_means_over_tokens() -> None:
    nan = float("nan")
    new = torch.tensor([[nan, -1.5, -1.1, -1.0], [-9.0, -1.0, nan, nan], [-1.0, -1.0, -1.0, -0.7]])
    retries = torch.tensor([[False, True, True, False], [False] * 4, [False, False, False, True]])
    old = torch.full((3, 4), -1.0)
    own = [Retry("into", "stored", 4), None, Retry("g", "g", 5)]
    halves = [reliance_sums(new[h], old[h], retries[h], own[h]) for h in (slice(1), slice(1, 3))]
    sums = {
        name: sum(half.get(name, 0.0) for half in halves) for name in {**halves[0], **halves[1]}
    }
    assert reliance_metrics(sums) == {"reliance": pytest.approx((-0.3 + 0.3) / 2, abs=1e-6)}
    assert (halves[0]["sum_reliance"], halves[0]["sum_retries"]) == (pytest.approx(-0.3), 1.0)
    assert reliance_of_retries(sums) == {
        ("into", "stored", 4): pytest.approx(-0.3),
        ("g", "g", 5): pytest.approx(0.3),
    }
    none = reliance_sums(new, old, retries & False, own)
    assert reliance_metrics(none) == reliance_of_retries(none) == {}


def test_a_role_without_tokens_has_no_metrics() -> None:
    empty = torch.zeros(1, 2, dtype=torch.bool)
    sums = drift_sums(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2), {"distilled": empty})
    assert drift_metrics(sums) == {}


def test_clipping_removes_the_share_beyond_the_limit() -> None:
    assert clipped_share(4.0, 1.0) == 0.75
    assert clipped_share(0.5, 1.0) == clipped_share(0.0, 1.0) == 0.0
