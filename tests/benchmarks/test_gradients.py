"""Gradients of groups: literal moments, and the mask of credit in a real gradient."""

import pytest
import torch

from benchmarks.results import gradients
from benchmarks.results.alternate import sampler
from benchmarks.results.cells import ORIGIN
from benchmarks.results.experiments import ALONE, ESTIMATORS


def test_the_noise_of_two_vectors_by_hand() -> None:
    moments = gradients.Moments()
    for vector in ([3.0, 0.0], [1.0, 0.0]):
        moments.add(torch.tensor(vector))
    # mean 2; covariance 2; the squared mean 4 holds half the covariance: 2 / (4 - 1)
    assert moments.mean.tolist() == [2.0, 0.0]
    assert moments.noise == pytest.approx(2 / 3)


@pytest.mark.nightly
def test_credit_changes_the_gradient_of_a_group_that_was_retried_late() -> None:
    policy = sampler(ORIGIN, seed=0)
    config = gradients._config((*ESTIMATORS["credit"][1], *ALONE), 0)
    groups = gradients._groups(policy, config, 4, 0)
    late = [
        group
        for group in groups
        if any(r.reflection and r.reflection.pivot > 0 for r in group.results)
        and len(set(group.rewards)) > 1
    ]
    assert late
    whole = gradients._config(("algorithm=r3l", "algorithm.credit=false", *ALONE), 0)
    one, again = gradients.gradients(policy, [late[0]] * 2, config)
    [other] = gradients.gradients(policy, [late[0]], whole)
    assert torch.equal(one, again) and 0 < gradients._cosine(one, other) < 0.999
