"""RLSD: the advice decides how large a token's advantage is, never its sign."""

import numpy as np
import pytest

from tests.r3l.algorithms.fakes import get
from tests.r3l.algorithms.shared.test_re_reading import answers_of, explored, reading


@pytest.mark.parametrize(
    ("advantage", "gap", "want"),
    [
        (1.0, 0.1, 1.1051709),
        (1.0, 2.0, 1.2),
        (1.0, -2.0, 0.8),
        (-0.5, 0.1, -0.5 * 0.9048374),
        (-0.5, -2.0, -0.6),
        (-0.5, 1000.0, -0.4),
        (0.0, 2.0, 0.0),
    ],
)
def test_sizes_in_literal_numbers(advantage, gap, want):
    assert get("rlsd").sized(advantage, np.array([gap])) == pytest.approx([want])


def test_tokens_without_advice_keep_their_attempts_advantage():
    algorithm = reading("rlsd", size_limit=0.5)
    batch = explored(algorithm)
    batch = batch.with_answers(answers_of(algorithm, batch, teacher=-1.2, own=-1.0))
    [tokens] = algorithm.token_advantages(batch, [np.array([-1.0, -1.0, 0.0, -1.0])])
    attempts = batch.groups[0].trajectories
    for values, attempt, own in zip(tokens, attempts, (-1.0, -1.0, 0.0, -1.0), strict=True):
        taught = attempt.responses_from(1)
        assert values[taught] == pytest.approx(own * np.exp(0.2), rel=1e-6)
        assert values[~taught] == pytest.approx(own)
