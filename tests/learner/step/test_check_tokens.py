"""Tokens that the model cannot know."""

import pytest

from learner.step.batch import check_tokens
from r3l.errors import UserError
from tests.learner.groups import explore_group


def test_tokens_outside_the_vocabulary_are_refused_with_their_group() -> None:
    group = explore_group((0.0, 1.0), (1.0, None), group_id="g7", vocab=200)
    check_tokens([group], 200)
    highest = max(int(t.token_ids.max()) for t in group.trajectories)
    with pytest.raises(UserError, match=f"g7.*token {highest}.*ends at {highest - 1}"):
        check_tokens([group], highest)
