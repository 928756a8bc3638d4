"""Settings of samplers that contradict each other or the algorithm."""

import pytest

from r3l.errors import UserError
from r3l.run.config import load


def test_trained_groups_in_the_place_of_flat_ones_need_an_algorithm_that_replaces_those():
    more = ["buffer.sampler.reuse=2", "buffer.sampler.replay_no_contrast=true"]
    assert load(None, ["algorithm=dapo", *more]).buffer.sampler.replay_no_contrast
    with pytest.raises(UserError, match="grpo never replaces"):
        load(None, ["algorithm=grpo", *more])
    with pytest.raises(UserError, match="replay_no_contrast and replay_share"):
        load(None, ["algorithm=dapo", *more, "buffer.sampler.replay_share=0.5"])
