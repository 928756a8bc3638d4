"""Patterns of text that may differ, and of models' names, are checked when they are read."""

import re
from contextlib import nullcontext
from typing import Any

import pytest

from r3l.errors import UserError
from r3l.run.config import load
from r3l.run.settings.actor import AgentConfig


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    assert load(None, ["actor.agent.ignore=['a+']"]).actor.agent.ignore == ("a+",)
    with pytest.raises(UserError, match=r"actor.agent.ignore"):
        load(None, ["actor.agent.ignore=['(']"])


@pytest.mark.parametrize(
    ("patterns", "never"),
    [
        (["gpt-*", "gpt-4*"], "gpt-4* never matches, because gpt-* comes before it"),
        (["*", "a?"], "a? never matches"),
        (["a*", "b*", "a*c"], "a*c never matches, because a* comes before it"),
        ([""], "an empty name"),
        (["gpt-4*", "gpt-*", "gpt-4-mini"], ""),
        (["a?", "a*"], ""),
        (["?*", "*"], ""),
        (["a[!b]*", "a?*"], ""),
    ],
)
def test_a_pattern_of_models_that_can_never_match_is_refused(
    patterns: list[str], never: str
) -> None:
    models: dict[str, Any] = dict.fromkeys(patterns, "policy")
    with pytest.raises(UserError, match=re.escape(never)) if never else nullcontext():
        AgentConfig(models=models)
