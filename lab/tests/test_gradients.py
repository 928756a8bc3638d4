"""Gradients of groups: literal moments, and the mask of credit in a real gradient."""

import pytest
import torch

from lab.results import gradients
from lab.results.alternate import FreePolicy
from lab.results.cells import CELLS, EASIEST, START_POLICY
from lab.results.experiments import ALONE, ESTIMATORS, gradients_setup_of
from lab.results.lines import LINES, read_lines

START = gradients.Start(EASIEST, START_POLICY)


def test_the_noise_of_two_vectors_by_hand() -> None:
    moments = gradients.Moments()
    for vector in ([3.0, 0.0], [1.0, 0.0]):
        moments.add(torch.tensor(vector))
    # mean 2; covariance 2; the squared mean 4 holds half the covariance: 2 / (4 - 1)
    assert moments.mean.tolist() == [2.0, 0.0]
    assert moments.noise == pytest.approx(2 / 3)


def test_a_line_without_a_cell_is_of_the_easiest_world_and_another_world_has_its_own_setup() -> (
    None
):
    line = {"groups": 128, "reference": 512}
    setups = {gradients_setup_of(line | cell) for cell in ({}, {"cell": EASIEST.name})}
    assert setups == {read_lines(LINES / "e4.jsonl")[0]["setup"]}
    assert gradients_setup_of(line | {"cell": "long-row"}) not in setups | {None}
    assert gradients_setup_of(line | {"cell": "none"}) is None


def test_the_world_of_a_cell_is_in_the_settings_of_its_gradients() -> None:
    config = gradients.Start(CELLS["long-row"], START_POLICY).config(ESTIMATORS["credit"][1], 0)
    assert config.env.options["decisive"] == 2 and config.actor.max_model_len == 4096
    assert START.config(ESTIMATORS["credit"][1], 0).actor.max_model_len == 1024


@pytest.mark.nightly
def test_credit_changes_the_gradient_of_a_group_that_was_retried_late() -> None:
    policy = FreePolicy(START_POLICY)
    config = START.config((*ESTIMATORS["credit"][1], *ALONE), 0)
    groups = gradients._groups(policy, config, 8, 0)
    contrasting = [group for group in groups if len(set(group.rewards)) > 1]
    late = max(contrasting, key=lambda group: sum(retry.pivot for _, retry in group.retries))
    whole = START.config(("algorithm=r3l", "algorithm.credit=false", *ALONE), 0)
    one, again = gradients.gradients(policy, [late] * 2, config)
    [other] = gradients.gradients(policy, [late], whole)
    assert torch.equal(one, again) and 0 < gradients._cosine(one, other) < 0.999
