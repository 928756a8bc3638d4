"""Patterns of text that may differ are checked when they are read."""

import pytest

from r3l.errors import UserError
from r3l.run.config import load


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    assert load(None, ["actor.agent.ignore=['a+']"]).actor.agent.ignore == ("a+",)
    with pytest.raises(UserError, match=r"actor.agent.ignore"):
        load(None, ["actor.agent.ignore=['(']"])
